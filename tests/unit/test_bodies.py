"""Bodies of requests: read and unpacked in work and memory that their size bounds, and never on the event loop."""

from __future__ import annotations

import asyncio
import gzip
import random
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from infra.rest import bodies, inflate
from infra.rest.bodies import SMALL_GZIP, BodyLimits, read_body
from infra.rest.inflate import FED_AT_ONCE, MAX_MEMBERS, STEP, NotGzip
from infra.rest.problems import Problem
from infra.threads import Threads

LIMITS = BodyLimits(16_000_000, 5, "a setting", "Nothing was stored.")
EMPTY = gzip.compress(b"", mtime=0)


class CountedInflater:
    """zlib's own object, and what it was given and gave."""

    work: ClassVar[Counter[str]] = Counter()

    def __init__(self, wbits: int) -> None:
        self.work["members"] += 1
        self._zlib = make(wbits)

    def decompress(self, data: bytes, most: int) -> bytes:
        found = self._zlib.decompress(data, most)
        self.work["calls"] += 1
        self.work["bytes"] += len(data) + len(found) + len(self._zlib.unconsumed_tail) + len(self._zlib.unused_data)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._zlib, name)


make = zlib.decompressobj


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many members zlib was given, how often it was called, and how many bytes it read and wrote."""
    CountedInflater.work = Counter()
    monkeypatch.setattr(inflate.zlib, "decompressobj", CountedInflater)
    return CountedInflater.work


def post(body: bytes, encoding: str = "gzip", *, parts: int = 1) -> Request:
    size = -(-len(body) // parts) or 1
    left = [body[at : at + size] for at in range(0, len(body), size)] or [b""]

    async def receive() -> dict[str, Any]:
        part = left.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    headers = [(b"content-encoding", encoding.encode())]
    return Request({"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}, receive)


def read(request: Request, charge: Callable[[int], None] | None = None, *, with_threads: bool = True) -> bytes:
    async def run() -> bytes:
        threads = Threads("unpack", 1) if with_threads else None
        return await read_body(request, LIMITS, charge or (lambda _: None), threads)

    return asyncio.run(run())


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20), st.integers(0, 2**32))
def test_what_was_packed_in_several_members_comes_back_whole(members: list[bytes], seed: int) -> None:
    members.append(random.Random(seed).randbytes(FED_AT_ONCE + seed % 3))  # noqa: S311  # no secret
    packed = b"".join(gzip.compress(member, mtime=0) for member in members)
    assert b"".join(inflate.inflate(packed)) == b"".join(members)


@pytest.mark.parametrize("size", [0, 1, FED_AT_ONCE, STEP, STEP + 1, 5_000_000])
def test_gzip_that_is_cut_off_is_refused_wherever_it_ends(size: int) -> None:
    packed = gzip.compress(bytes(size), mtime=0)
    for end in {1, 5, 10, len(packed) // 2, len(packed) - 8, len(packed) - 1}:
        with pytest.raises(NotGzip):
            list(inflate.inflate(packed[:end]))
    for rest in (b"x", EMPTY[:5], b"\0" * 30_000):
        with pytest.raises(NotGzip):
            list(inflate.inflate(packed + rest))


def test_many_empty_members_are_refused_without_handling_the_rest_for_each(work: Counter[str]) -> None:
    """They once were all unpacked, and what was left was handed back each time: 2 MB took seconds."""
    packed = EMPTY * (LIMITS.size // len(EMPTY))
    with pytest.raises(Problem) as refused:
        read(post(packed))
    assert (refused.value.status, refused.value.kind) == (400, "not-gzip")
    assert "members" in refused.value.detail
    assert work["members"] == MAX_MEMBERS
    assert work["bytes"] <= 3 * MAX_MEMBERS * FED_AT_ONCE


def test_as_many_members_as_are_taken_are_little_work(work: Counter[str]) -> None:
    block = random.Random(1).randbytes(15_000)  # noqa: S311  # no secret
    packed = gzip.compress(block, mtime=0) * MAX_MEMBERS
    assert read(post(packed)) == block * MAX_MEMBERS
    assert work["calls"] <= len(packed) // FED_AT_ONCE + 2 * MAX_MEMBERS
    assert work["bytes"] <= 4 * len(packed)


def test_a_bomb_is_unpacked_no_further_than_the_limit(work: Counter[str]) -> None:
    packed = gzip.compress(bytes(200_000_000), mtime=0)
    charged: list[int] = []
    with pytest.raises(Problem) as refused:
        read(post(packed), charged.append)
    assert refused.value.status == 413
    assert sum(charged) <= len(packed) + LIMITS.size
    assert work["bytes"] <= 2 * LIMITS.size
    assert work["calls"] <= LIMITS.size // STEP + len(packed) // FED_AT_ONCE + 2


def test_a_packed_body_is_unpacked_beside_the_event_loop_unless_it_is_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    unpack = bodies._unpack

    def note(*arguments: Any) -> bytes:
        used.append(threading.get_ident())
        return unpack(*arguments)

    monkeypatch.setattr(bodies, "_unpack", note)
    noise = random.Random(2).randbytes(SMALL_GZIP)  # noqa: S311  # no secret
    assert read(post(gzip.compress(b"{}"))) == b"{}"
    assert read(post(gzip.compress(noise), parts=3)) == noise
    assert used[0] == threading.get_ident() != used[1]


def test_a_part_that_the_budget_refuses_ends_the_unpacking(work: Counter[str]) -> None:
    charged: list[int] = []

    def refuse(size: int) -> None:
        charged.append(size)
        if sum(charged) > 2 * STEP:
            raise Problem(429, "buffer-full", "Enough.")

    with pytest.raises(Problem) as refused:
        read(post(gzip.compress(bytes(10_000_000))), refuse)
    assert refused.value.status == 429
    assert work["calls"] == 2


@pytest.mark.parametrize("encoding", ["deflate", "br", "zstd", "gzip, gzip", "compress"])
def test_other_encodings_are_refused_before_the_body_is_read(encoding: str) -> None:
    with pytest.raises(Problem) as refused:
        read(post(b"x", encoding), lambda _: pytest.fail("the body was read"))
    assert (refused.value.status, refused.value.headers) == (415, {"Accept-Encoding": "gzip"})


def test_where_nothing_may_be_unpacked_gzip_is_refused_too(work: Counter[str]) -> None:
    with pytest.raises(Problem) as refused:
        read(post(EMPTY), with_threads=False)
    assert (refused.value.status, refused.value.headers) == (415, {"Accept-Encoding": "identity"})
    assert read(post(b"{}", "identity"), with_threads=False) == b"{}"
    assert not work
