"""Signed-in browsers: a key is proved once, and a cookie stands for it until it ends.

A browser cannot put an Authorization header on everything it opens, and a page that kept the secret would be a place to
steal it from. So the secret is exchanged for a random token that scripts cannot read. Of the token a hash is kept, one
small file for each session in the home: several processes serve one home, and each of them must know it.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import HTTPConnection

from infra.home import read_json, write_json
from infra.rest.access_keys import AccessKey, AccessKeys, Secret
from infra.rest.problems import Problem

FOLDER = "sessions"
MOST = 200
"""Sessions that a home keeps: the oldest ends when there is one more."""
LONGEST_TOKEN = 100
SAFE_METHODS = ("GET", "HEAD")


class Session(NamedTuple):
    """A session: its key, and when it expires. `proof` is of the secret that it began with: it ends with that one."""

    key: str
    proof: str
    ends: float


class Sessions:
    """The sessions of a home, in a folder of the home unless another is given."""

    def __init__(self, home: Path, lasts_s: float, most: int = MOST, folder: Path | None = None) -> None:
        self._folder, self._lasts_s, self._most = folder or home / FOLDER, lasts_s, most
        # Cookies know no ports: two homes on one machine would sign each other out.
        self.cookie = f"tidemark_{hashlib.sha256(str(home).encode()).hexdigest()[:8]}"

    def begin(self, key: AccessKey) -> tuple[str, Session]:
        """A new session of a key that was proved: its token, which is kept nowhere, and what is.

        The problem 503 where nothing can be written.
        """
        token = secrets.token_urlsafe(32)
        session = Session(key.name, _proof(key.name, key.proved_by or key.secret), time.time() + self._lasts_s)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._make_room()
            write_json(self._file(token), session._asdict(), mode=0o600)
        except OSError as error:
            raise Problem(
                503,
                "sessions-unwritable",
                f"Nobody can sign in: {str(self._folder)!r} cannot be written ({error.strerror}). Name a folder where "
                "the serving layer may write (serving_sessions_dir), or send the key with each request.",
                retry_after_s=30,
            ) from None
        return token, session

    def find(self, connection: HTTPConnection, keys: AccessKeys) -> tuple[Session, AccessKey] | None:
        """The session of a request and its key; None without a session, or if it or its secret ended or is gone."""
        token = connection.cookies.get(self.cookie, "")
        if not token or len(token) > LONGEST_TOKEN or not is_from_our_page(connection):
            return None
        session = _read(self._file(token))
        if session is None or session.ends < time.time():
            return None
        key, valid = keys.valid_secrets(session.key)
        if key is None or session.proof not in [_proof(key.name, secret) for secret in valid]:
            return None
        return session, key

    def end(self, connection: HTTPConnection) -> None:
        """End the session of a request, for every process at once."""
        token = connection.cookies.get(self.cookie, "")
        if token and len(token) <= LONGEST_TOKEN:
            self._file(token).unlink(missing_ok=True)

    def _file(self, token: str) -> Path:
        return self._folder / f"{hashlib.sha256(token.encode()).hexdigest()}.json"

    def _make_room(self) -> None:
        kept = sorted(self._folder.glob("*.json"), key=_age, reverse=True)
        for path in kept[: max(len(kept) - self._most + 1, 0)]:
            path.unlink(missing_ok=True)
        for path in kept:
            session = _read(path)
            if session is None or session.ends < time.time():
                path.unlink(missing_ok=True)


def is_from_another_page(connection: HTTPConnection) -> bool:
    """Whether a browser says that a page of another server made this request. Programs say nothing."""
    origin, host = connection.headers.get("origin"), connection.headers.get("host", "")
    if connection.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return True
    return origin is not None and origin.partition("://")[2] != host


def is_silent_browser(connection: HTTPConnection) -> bool:
    """Whether a browser made this request and does not say for which page.

    Without encryption, and not on loopback, a GET has no Sec-Fetch-Site and no Origin. Both headers that tell a
    browser are its own: a page cannot leave them out.
    """
    headers = connection.headers
    is_browser = "accept-language" in headers and "mozilla/" in headers.get("user-agent", "").lower()
    return is_browser and "origin" not in headers and "sec-fetch-site" not in headers


def is_from_our_page(connection: HTTPConnection) -> bool:
    """Whether a request comes from a page of this very server, as a browser tells: others must not use its cookie.

    SameSite does not see to that alone: other ports of the same machine are the same site. What changes something, and
    a WebSocket, which no browser keeps from other pages, has to say where it comes from.
    """
    if is_from_another_page(connection):
        return False
    is_reading = connection.scope["type"] == "http" and connection.scope["method"] in SAFE_METHODS
    return is_reading or "origin" in connection.headers


def _proof(name: str, secret: Secret) -> str:
    """Of a key and its secret: one that is made again under the same name has another."""
    return hashlib.sha256(f"{name}:{secret.hash}".encode()).hexdigest()


def _read(path: Path) -> Session | None:
    found: Any = read_json(path)
    try:
        return Session(str(found["key"]), str(found["proof"]), float(found["ends"]))
    except (TypeError, KeyError, ValueError):
        return None


def _age(path: Path) -> float:
    try:
        return -path.stat().st_mtime
    except FileNotFoundError:  # another process made room too
        return 0.0
