"""Access keys: named secrets with scopes and limits, stored as hashes in the home's `access_keys.json`.

A secret has 256 random bits, so nobody can guess it from its hash, however fast the hash. SHA-256 with a salt is
enough, and a slow password hash would only cost each request milliseconds. The secret itself is shown once and stored
nowhere. A change of the file takes effect without a restart.

A key may expire. A rotation gives it a new secret, and the old one stays valid for a while: clients change one after
another. `key_clock` gives the time for both.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from infra.disk import FileStamp, file_stamp
from infra.errors import InfraError
from infra.home import Home, read_json, write_json
from infra.locks import hold
from infra.rest.key_clock import TOLERANCE_S, KeyClock, clock_file, latest_seen
from infra.rest.key_limits import MAX_PATTERNS, NO_LIMITS, KeyLimits, Patterns, without_wildcards, wrong_pattern
from infra.times import iso_utc

SCOPES = ("produce", "consume", "query", "metrics", "admin", "schema:read", "schema:write")
"""What a key may be allowed: send events, read topics back, ask views, read what servers measure, administer, and read
or register schemas."""
FIRST_KEY = "admin"
MAX_PROVED = 1_000
"""Headers that are remembered."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
FILE_NAME = "access_keys.json"


class AccessKeyError(InfraError):
    """A key cannot be made, found or read."""

    exit_code = 2


class KeyExpired(AccessKeyError):
    """A secret is that of a key, but no longer valid."""


class Secret(NamedTuple):
    """A secret as it is stored. `ends`: when it becomes invalid, in seconds since 1970; None: never."""

    salt: str
    hash: str
    ends: float | None = None

    def matches(self, secret: bytes) -> bool:
        """Whether this is the secret, in a time that does not depend on how much of it is right."""
        return hmac.compare_digest(_hash(self.salt, secret), self.hash)

    def is_valid(self, now: Callable[[], float]) -> bool:
        """Whether it has not ended."""
        return self.ends is None or now() < self.ends


@dataclass(frozen=True)
class AccessKey:
    """One key without its secrets. `created`, `expires` and `rotated` are seconds since 1970; None: never.

    `old_secret` is the one before the last rotation. `proved_by` is the secret that a request came with.
    """

    name: str
    scopes: frozenset[str]
    secret: Secret
    created: float
    limits: KeyLimits = NO_LIMITS
    rotated: float | None = None
    old_secret: Secret | None = None
    proved_by: Secret | None = field(default=None, compare=False)

    @property
    def views(self) -> Patterns:
        """Patterns of the views that the scope `query` is limited to; None: no such limit."""
        return self.limits.views

    @property
    def expires(self) -> float | None:
        """When it becomes invalid."""
        return self.secret.ends

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """Its secrets, the current one first."""
        return (self.secret,) if self.old_secret is None else (self.secret, self.old_secret)


def keys_file(home: Path) -> Path:
    """Where the keys of a home are."""
    return home / FILE_NAME


def add_key(
    home: Path,
    name: str,
    scopes: Iterable[str],
    views: Iterable[str] | None = None,
    *,
    sources: Iterable[str] | None = None,
    topics: Iterable[str] | None = None,
    subjects: Iterable[str] | None = None,
    expires_s: float | None = None,
) -> str:
    """Make a key and return its secret, which can never be read again. `expires_s` is how long the key is valid."""
    requested = tuple(dict.fromkeys(scopes))
    if not NAME.fullmatch(name):
        raise AccessKeyError(
            f"{name!r} is no name for a key: letters, digits, '.', '_' and '-', at most 64, a letter or digit first."
        )
    if unknown := [scope for scope in requested if scope not in SCOPES]:
        raise AccessKeyError(f"Key {name!r}: there is no scope {unknown[0]!r}. There are: {', '.join(SCOPES)}.")
    if not requested:
        raise AccessKeyError(f"Key {name!r}: name at least one scope. There are: {', '.join(SCOPES)}.")
    limits = KeyLimits(
        sources=_patterns(name, "source", sources),
        topics=_patterns(name, "topic", topics),
        views=_patterns(name, "view", views),
        subjects=_patterns(name, "subject", subjects),
    )
    now = _time_for(home, expires_s)
    secret, stored = _new_secret(None if expires_s is None else now + expires_s)
    with _changing(home) as keys:
        if name in keys:
            raise AccessKeyError(f"There is a key {name!r} already. Remove it first: `tidemark keys remove {name}`.")
        keys[name] = AccessKey(name, frozenset(requested), stored, now, limits)
    return secret


def rotate_key(home: Path, name: str, grace_s: float, expires_s: float | None = None) -> str:
    """Give a key a new secret and return it. The old one is valid for `grace_s` more, but not longer than it was.

    An even older secret is invalid from now on. Without `expires_s` the key expires when it would have.
    """
    now = _time_for(home, grace_s or expires_s)
    with _changing(home) as keys:
        if name not in keys:
            raise _unknown_key(name, keys)
        key = keys[name]
        if expires_s is None and key.expires is not None and key.expires <= now:
            raise AccessKeyError(
                f"The key {name!r} expired at {iso_utc(key.expires)}. Say how long the new secret is valid: "
                f"`tidemark keys rotate {name} --expires 90d`."
            )
        secret, stored = _new_secret(key.expires if expires_s is None else now + expires_s)
        old_ends = now + grace_s if key.expires is None else min(now + grace_s, key.expires)
        old = key.secret._replace(ends=old_ends) if old_ends > now else None
        keys[name] = replace(key, secret=stored, rotated=now, old_secret=old)
    return secret


def remove_key(home: Path, name: str) -> None:
    """Forget a key; requests with it are refused from now on."""
    with _changing(home) as keys:
        if name not in keys:
            raise _unknown_key(name, keys)
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
    except (TypeError, KeyError, ValueError, AttributeError):
        raise AccessKeyError(
            f"{str(path)!r} is damaged. Restore it, or delete it and run `tidemark up` for a new first key."
        ) from None


class AccessKeys:
    """The keys of a home for a server: read again whenever their file changed."""

    def __init__(self, home: Path, clock: KeyClock | None = None) -> None:
        self._home = home
        self._clock = clock or KeyClock(home)
        self._file = keys_file(home)
        self._stamp: FileStamp | None = None
        self._keys: dict[str, AccessKey] = {}
        self._proved: dict[bytes, AccessKey] = {}
        """What headers proved since the file last changed, by their hash."""

    def current(self) -> dict[str, AccessKey]:
        """The keys as they are now."""
        stamp = file_stamp(self._file)
        if stamp is None:
            self._keys, self._proved, self._stamp = {}, {}, None
            return {}
        if stamp != self._stamp:
            self._keys, self._proved, self._stamp = read_keys(self._home), {}, stamp
        return self._keys

    def find(self, authorization: str) -> AccessKey | None:
        """The key that an Authorization header proves (`Basic name:secret` or `Bearer secret`), else None.

        KeyExpired: the secret was right, but it or its key has expired.
        """
        self.current()
        header = hashlib.sha256(authorization.encode("utf-8", "surrogateescape")).digest()
        proved = self._proved
        found = proved.get(header)
        if found is None:
            found = self._prove(authorization)
            if found is None:
                return None
            if len(proved) >= MAX_PROVED:
                proved.clear()
            proved[header] = found
        if found.proved_by is not None and not found.proved_by.is_valid(self._clock.now):
            raise KeyExpired(_expired_text(found, found.proved_by))
        return found

    def _prove(self, authorization: str) -> AccessKey | None:
        scheme, _, credentials = authorization.strip().partition(" ")
        match scheme.lower():
            case "basic":
                name, secret = _basic(credentials.strip())
                return self._matching(name, secret)
            case "bearer":
                return self._matching(None, credentials.strip().encode("utf-8", "surrogateescape"))
        return None

    def valid_secrets(self, name: str) -> tuple[AccessKey | None, list[Secret]]:
        """The key of a name, and which of its secrets are valid now."""
        key = self.current().get(name)
        return key, [] if key is None else [each for each in key.secrets if each.is_valid(self._clock.now)]

    def _matching(self, name: str | None, secret: bytes) -> AccessKey | None:
        """Compare with every key, so that the time tells nothing about which names exist."""
        found = None
        for key in self._keys.values():
            for stored in key.secrets:
                is_right = stored.matches(secret)
                if is_right and name in (None, key.name):
                    found = replace(key, proved_by=stored)
        return found


def _expired_text(key: AccessKey, secret: Secret) -> str:
    ended = iso_utc(secret.ends or 0)
    if secret == key.old_secret:
        return f"the key {key.name!r} was rotated, and this old secret was valid until {ended}"
    return f"the key {key.name!r} expired at {ended}; `tidemark keys rotate {key.name} --expires 90d` renews it"


def _unknown_key(name: str, keys: dict[str, AccessKey]) -> AccessKeyError:
    return AccessKeyError(f"There is no key {name!r}. There are: {', '.join(sorted(keys)) or 'none'}.")


def _patterns(name: str, kind: str, given: Iterable[str] | None) -> Patterns:
    if given is None:
        return None
    patterns = tuple(dict.fromkeys(given))
    wrong = wrong_pattern(patterns)
    if wrong is not None:
        raise AccessKeyError(
            f"Key {name!r}: {wrong!r} is no pattern for a {kind}: letters, digits, '.', '_', '-', and '*' or '?' for "
            "any characters or one."
        )
    if len(patterns) > MAX_PATTERNS:
        raise AccessKeyError(f"Key {name!r}: {len(patterns)} patterns for a {kind}; at most {MAX_PATTERNS} are kept.")
    return patterns


def _time_for(home: Path, valid_s: float | None) -> float:
    """The time now. Refuse to compute an end from a clock that is known to be wrong."""
    now, latest = time.time(), latest_seen(home)
    if valid_s and now < latest - TOLERANCE_S:
        raise AccessKeyError(
            f"The clock says {iso_utc(round(now))}, but a server of this home saw {iso_utc(round(latest))} already, so "
            f"no time of expiry can be set. Set the clock right. If it is right, delete {str(clock_file(home))!r} and "
            "restart the servers."
        )
    return round(now)


def _new_secret(ends: float | None) -> tuple[str, Secret]:
    secret, salt = secrets.token_urlsafe(32), secrets.token_hex(16)
    return secret, Secret(salt, _hash(salt, secret.encode()), ends)


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
    Home(home).claim()
    path = keys_file(home)
    with hold(path.with_suffix(".lock"), mode=0o600):
        keys = read_keys(home)
        yield keys
        write_json(path, {"keys": [_to_json(key) for key in keys.values()]}, mode=0o600)


def _to_json(key: AccessKey) -> dict[str, Any]:
    old, limits = key.old_secret, key.limits
    return {
        "name": key.name,
        "scopes": sorted(key.scopes, key=SCOPES.index),
        "salt": key.secret.salt,
        "hash": key.secret.hash,
        "created": iso_utc(key.created),
        "sources": _listed(limits.sources),
        "topics": _listed(limits.topics),
        "views": _listed(limits.views),
        "subjects": _listed(limits.subjects),
        "expires": _iso(key.expires),
        "rotated": _iso(key.rotated),
        "old_secret": None if old is None else {"salt": old.salt, "hash": old.hash, "ends": _iso(old.ends)},
    }


def _from_json(entry: dict[str, Any]) -> AccessKey:
    """A key of the file. Tidemark 0.1.0 wrote neither limits of sources and topics nor times, and no patterns."""
    is_older = "sources" not in entry
    views, old = _read_patterns(entry.get("views")), entry.get("old_secret")
    return AccessKey(
        name=entry["name"],
        scopes=frozenset(entry["scopes"]),
        secret=Secret(entry["salt"], entry["hash"], _seconds(entry.get("expires"))),
        created=datetime.fromisoformat(entry["created"]).timestamp(),
        limits=KeyLimits(
            sources=_read_patterns(entry.get("sources")),
            topics=_read_patterns(entry.get("topics")),
            views=without_wildcards(views) if is_older and views is not None else views,
            subjects=_read_patterns(entry.get("subjects")),
        ),
        rotated=_seconds(entry.get("rotated")),
        # An old secret without an end would be valid for ever.
        old_secret=None if old is None else Secret(old["salt"], old["hash"], _seconds(old["ends"]) or 0.0),
    )


def _listed(patterns: Patterns) -> list[str] | None:
    return None if patterns is None else list(patterns)


def _read_patterns(given: list[str] | None) -> Patterns:
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise TypeError(f"patterns are a list of texts, not {given!r}")
    return tuple(given)


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else iso_utc(seconds)


def _seconds(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()
