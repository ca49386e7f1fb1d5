"""Parts that any fuzzed request can have: packed bodies, headers of browsers, credentials of every kind."""

from __future__ import annotations

import base64
import gzip
import random
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import httpx

from infra.rest.access_keys import SCOPES, add_key, rotate_key
from infra.rest.inflate import MAX_MEMBERS
from tests.conftest import Stack, wait_until

Request = tuple[str, str, bytes | None, dict[str, str]]
"""Method, path, body, headers."""

# ---- packed bodies --------------------------------------------------------------

EMPTY = gzip.compress(b"", mtime=0)
BOMB = gzip.compress(bytes(64_000_000), 9, mtime=0)
"""Of more bytes than any server takes; packed it is small enough for all of them but one."""
NESTED = gzip.compress(gzip.compress(bytes(4_000_000), 9, mtime=0), mtime=0)


def _members(chance: random.Random, body: bytes) -> bytes:
    """The body in members of a few bytes each, with empty ones in between."""
    size = chance.choice([1, 7, 100])
    parts = [gzip.compress(body[at : at + size], mtime=0) for at in range(0, min(len(body), 3_000), size)]
    return b"".join(part + EMPTY * chance.randrange(2) for part in parts)


def _flipped(chance: random.Random, body: bytes) -> bytes:
    packed = bytearray(gzip.compress(body, mtime=0))
    packed[chance.randrange(len(packed))] ^= 1 << chance.randrange(8)
    return bytes(packed)


def _cut(chance: random.Random, body: bytes) -> bytes:
    packed = gzip.compress(body, mtime=0)
    return packed[: chance.randrange(len(packed))]


PACKERS: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "whole": lambda _chance, body: gzip.compress(body, mtime=0),
    "members": _members,
    "too many members": lambda chance, body: EMPTY * chance.choice([MAX_MEMBERS, MAX_MEMBERS + 1]) + body,
    "cut": _cut,
    "flipped": _flipped,
    "trailing": lambda chance, body: gzip.compress(body, mtime=0) + chance.randbytes(chance.randrange(1, 40)),
    "bomb": lambda _chance, _body: BOMB,
    "bomb of members": lambda chance, _body: gzip.compress(bytes(1_000_000), mtime=0) * chance.randrange(2, 30),
    "nested": lambda _chance, _body: NESTED,
    "zlib": lambda _chance, body: zlib.compress(body),
    "not packed": lambda _chance, body: body,
    "noise": lambda chance, _body: b"\x1f\x8b" + chance.randbytes(chance.randrange(60)),
}
ENCODINGS = ["gzip"] * 8 + ["x-gzip", "GZIP", " gzip ", "gzip, gzip", "deflate", "br", "identity", "zstd", "", ","]


def with_packed_body(chance: random.Random, request: Request) -> Request:
    """The request with its body packed in one of many ways; also one that has no body gets one."""
    method, path, body, headers = request
    packed = PACKERS[chance.choice([*PACKERS])](chance, body or b"{}")
    return method, path, packed, {**headers, "Content-Encoding": chance.choice(ENCODINGS)}


# ---- what browsers add -----------------------------------------------------------

FETCH_SITES = ["same-origin", "same-site", "cross-site", "none", "", "SAME-ORIGIN", "x" * 300]


def browser_headers(chance: random.Random, netloc: str) -> dict[str, str]:
    """Some of the headers by which a server knows which page made a request."""
    origins = [f"http://{netloc}", f"https://{netloc}", "http://elsewhere:1", "null", "", "://", netloc, "é", "\t", "*"]
    possible = {
        "Origin": chance.choice(origins),
        "Sec-Fetch-Site": chance.choice(FETCH_SITES),
        "Sec-Fetch-Mode": chance.choice(["cors", "no-cors", "navigate", "websocket"]),
        "Referer": chance.choice([f"http://{netloc}/dashboard", "http://elsewhere/", "x"]),
        "User-Agent": "Mozilla/5.0",
        "Accept-Language": chance.choice(["en", "*", "x" * 500]),
        "X-Requested-With": chance.choice(["fetch", ""]),
        "X-Forwarded-Proto": chance.choice(["https", "http", "ftp"]),
        "Accept-Encoding": chance.choice(["gzip", "gzip;q=0", "*", "identity;q=0", "br,,;q=x"]),
    }
    return {name: value for name, value in possible.items() if chance.random() < 0.35}


def is_foreign(headers: dict[str, str], netloc: str) -> bool:
    """Whether a browser that sent these headers spoke for a page of another server."""
    if headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
        return True
    return "Origin" in headers and headers["Origin"].strip().partition("://")[2] != netloc


# ---- credentials -----------------------------------------------------------------


class Credential(NamedTuple):
    """What a request proves its key with. `is_valid` is None if it depends on the server or on other requests."""

    kind: str
    headers: dict[str, str]
    is_valid: bool | None
    secret: str = ""
    """What no answer may say."""

    @property
    def is_sent_by_browsers(self) -> bool:
        """Whether a browser adds it by itself to whatever a page requests."""
        return not self.headers.get("Authorization", "").lower().startswith("bearer")


def basic(kind: str, name: str, secret: str, *, is_valid: bool = True) -> Credential:
    """A key by name and secret."""
    login = base64.b64encode(f"{name}:{secret}".encode()).decode()
    return Credential(kind, {"Authorization": f"Basic {login}"}, is_valid, secret)


def bearer(kind: str, secret: str, *, is_valid: bool = True) -> Credential:
    """A key by its secret."""
    return Credential(kind, {"Authorization": f"Bearer {secret}"}, is_valid, secret)


WRONG = [
    "Basic", "Basic ", "Basic :", "Basic YWRtaW4=", "Basic YWRtaW46", "Basic OnNlY3JldA==", "Basic /w==", "Basic ====",
    "Basic " + "A" * 5_000, "Bearer", "Bearer ", "Bearer wrong", "Bearer é", "Bearer " + "A" * 5_000, "Digest x", "x",
    "basic\tYWRtaW46eA==", "Bearer a b", "Negotiate", ",", "Basic YWRtaW46eA==, Bearer x",
]  # fmt: skip
COOKIES = ["", "=", "x", "a=b; c", "é=é", "; ;", "a=" + "b" * 3_000, '"', "tidemark_00000000=x"]


def make_credentials(stack: Stack) -> list[Credential]:
    """Keys of every kind, made in the home of a stack: valid, limited, rotated, expired; and sessions of browsers."""
    home = stack.settings.home
    limits = {"views": ["page_*"], "topics": ["we?", "any*"], "sources": ["we?"]}
    limited = add_key(home, "by-pattern", [each for each in SCOPES if each != "admin"], **limits)  # type: ignore[arg-type]
    old = add_key(home, "rotated", SCOPES)
    new = rotate_key(home, "rotated", grace_s=24 * 3600)
    replaced = add_key(home, "replaced", SCOPES)
    rotate_key(home, "replaced", grace_s=0)
    made = [
        bearer("bearer", stack.secret),
        *(basic("limited", "by-pattern", limited), bearer("limited", limited)),
        *(basic("rotated", "rotated", new), basic("old secret in its grace", "rotated", old)),
        basic("old secret", "replaced", replaced, is_valid=False),
        bearer("old secret", replaced, is_valid=False),
        *_expired(stack, home),
        basic("another name", "nobody", stack.secret, is_valid=False),
        Credential("none", {}, is_valid=False),
        *(Credential("wrong", {"Authorization": each}, is_valid=False) for each in WRONG),
        *(Credential("wrong cookie", {"Cookie": each}, is_valid=False) for each in COOKIES),
    ]
    return made + [_signed_in(stack) for _ in range(5)]


def _expired(stack: Stack, home: Path) -> Iterable[Credential]:
    secret = add_key(home, "expired", SCOPES, expires_s=0.001)
    made = [basic("expired", "expired", secret, is_valid=False), bearer("expired", secret, is_valid=False)]
    wait_until(
        "the key to expire",
        lambda: httpx.get(f"{stack.serving}/views", headers=made[0].headers, timeout=30).status_code == 401,
    )
    return made


def _signed_in(stack: Stack) -> Credential:
    """The cookie of a session. The collector knows none, and the dashboard's own requests may end it."""
    answer = httpx.post(f"{stack.serving}/session", json={"name": "admin", "secret": stack.secret}, timeout=30)
    name, value = next(iter(answer.raise_for_status().cookies.items()))
    return Credential("signed in", {"Cookie": f"{name}={value}"}, None, value)


def choose(chance: random.Random, admin: Credential, others: list[Credential]) -> Credential:
    """Mostly the key that may do everything, so that most requests reach what they ask for; else any kind of others."""
    if chance.random() < 0.75:
        return admin
    kind = chance.choice(sorted({each.kind for each in others}))
    return chance.choice([each for each in others if each.kind == kind])
