"""Access keys: named secrets with scopes, stored as hashes in the home's `access_keys.json`.

A secret has 256 random bits, so nobody can guess it from its hash, however fast the hash. SHA-256 with a salt is
enough, and a slow password hash would only cost each request milliseconds. The secret itself is shown once and stored
nowhere. A change of the file takes effect without a restart.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra.disk import FileStamp, file_stamp
from infra.errors import InfraError
from infra.home import read_json, write_json
from infra.locks import hold

SCOPES = ("produce", "consume", "query", "metrics", "admin")
"""What a key may be allowed: send events, read topics back, ask views, read what servers measure, and administer."""
FIRST_KEY = "admin"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
FILE_NAME = "access_keys.json"


class AccessKeyError(InfraError):
    """A key cannot be made, found or read."""

    exit_code = 2


@dataclass(frozen=True)
class AccessKey:
    """One key without its secret. `views` limits the scope `query` to these views; None: all."""

    name: str
    scopes: frozenset[str]
    salt: str
    hash: str
    created: str
    views: tuple[str, ...] | None = None

    def matches(self, secret: bytes) -> bool:
        """Whether this is the key's secret, in a time that does not depend on how much of it is right."""
        return hmac.compare_digest(_hash(self.salt, secret), self.hash)


def keys_file(home: Path) -> Path:
    """Where the keys of a home are."""
    return home / FILE_NAME


def add_key(home: Path, name: str, scopes: Iterable[str], views: Iterable[str] | None = None) -> str:
    """Make a key and return its secret, which can never be read again."""
    requested = tuple(dict.fromkeys(scopes))
    if not NAME.fullmatch(name):
        raise AccessKeyError(
            f"{name!r} is no name for a key: letters, digits, '.', '_' and '-', at most 64, a letter or digit first."
        )
    if unknown := [scope for scope in requested if scope not in SCOPES]:
        raise AccessKeyError(f"Key {name!r}: there is no scope {unknown[0]!r}. There are: {', '.join(SCOPES)}.")
    if not requested:
        raise AccessKeyError(f"Key {name!r}: name at least one scope. There are: {', '.join(SCOPES)}.")
    secret = secrets.token_urlsafe(32)
    salt = secrets.token_hex(16)
    key = AccessKey(
        name=name,
        scopes=frozenset(requested),
        salt=salt,
        hash=_hash(salt, secret.encode()),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        views=tuple(views) if views is not None else None,
    )
    with _changing(home) as keys:
        if name in keys:
            raise AccessKeyError(f"There is a key {name!r} already. Remove it first: `tidemark keys remove {name}`.")
        keys[name] = key
    return secret


def remove_key(home: Path, name: str) -> None:
    """Forget a key; requests with it are refused from now on."""
    with _changing(home) as keys:
        if name not in keys:
            raise AccessKeyError(f"There is no key {name!r}. There are: {', '.join(sorted(keys)) or 'none'}.")
        del keys[name]


def make_first_key(home: Path) -> str | None:
    """The secret of a new key `admin` with every scope, or None where the home has keys already (or had some once)."""
    if keys_file(home).exists():
        return None
    return add_key(home, FIRST_KEY, SCOPES)


def read_keys(home: Path) -> dict[str, AccessKey]:
    """The keys of a home by name. A damaged file is an error: it must not pass for "no keys"."""
    path = keys_file(home)
    if not path.exists():
        return {}
    stored = read_json(path)
    try:
        return {entry["name"]: _from_json(entry) for entry in stored["keys"]}
    except (TypeError, KeyError):
        raise AccessKeyError(
            f"{str(path)!r} is damaged. Restore it, or delete it and run `tidemark up` for a new first key."
        ) from None


class AccessKeys:
    """The keys of a home for a server: read again whenever their file changed."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._file = keys_file(home)
        self._stamp: FileStamp | None = None
        self._keys: dict[str, AccessKey] = {}

    def current(self) -> dict[str, AccessKey]:
        """The keys as they are now."""
        stamp = file_stamp(self._file)
        if stamp is None:
            return {}
        if stamp != self._stamp:
            self._keys, self._stamp = read_keys(self._home), stamp
        return self._keys

    def find(self, authorization: str) -> AccessKey | None:
        """The key that an Authorization header proves (`Basic name:secret` or `Bearer secret`), else None."""
        scheme, _, credentials = authorization.strip().partition(" ")
        match scheme.lower():
            case "basic":
                name, secret = _basic(credentials.strip())
                return self._matching(name, secret)
            case "bearer":
                return self._matching(None, credentials.strip().encode("utf-8", "surrogateescape"))
        return None

    def _matching(self, name: str | None, secret: bytes) -> AccessKey | None:
        """Compare with every key, so that the time tells nothing about which names exist."""
        found = None
        for key in self.current().values():
            is_right = key.matches(secret)
            if is_right and name in (None, key.name):
                found = key
        return found


def _basic(credentials: str) -> tuple[str, bytes]:
    try:
        name, _, secret = base64.b64decode(credentials, validate=True).partition(b":")
        return name.decode(), secret
    except (binascii.Error, ValueError):
        return "", b""


def _hash(salt: str, secret: bytes) -> str:
    return hashlib.sha256(salt.encode() + secret).hexdigest()


@contextmanager
def _changing(home: Path) -> Iterator[dict[str, AccessKey]]:
    """The keys, to be changed by one process at a time; written back so that only this user can read them."""
    if not home.is_dir():
        raise AccessKeyError(f"There is no home at {str(home)!r} yet. `tidemark up` makes it, and the first key.")
    path = keys_file(home)
    with hold(path.with_suffix(".lock"), mode=0o600):
        keys = read_keys(home)
        yield keys
        write_json(path, {"keys": [_to_json(key) for key in keys.values()]}, mode=0o600)


def _to_json(key: AccessKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "scopes": sorted(key.scopes, key=SCOPES.index),
        "salt": key.salt,
        "hash": key.hash,
        "created": key.created,
        "views": list(key.views) if key.views is not None else None,
    }


def _from_json(entry: dict[str, Any]) -> AccessKey:
    views = entry.get("views")
    return AccessKey(
        name=entry["name"],
        scopes=frozenset(entry["scopes"]),
        salt=entry["salt"],
        hash=entry["hash"],
        created=entry["created"],
        views=tuple(views) if views is not None else None,
    )
