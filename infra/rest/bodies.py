"""Bodies of requests: read within limits, unpacked, and never trusted to match their headers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request

from infra.rest.inflate import NotGzip, inflate
from infra.rest.problems import Problem
from infra.threads import Threads

SMALL_GZIP = 1 << 10
"""A packed body of this size becomes at most a thousand times as large. Unpacking it takes less than a thread."""


@dataclass(frozen=True)
class BodyLimits:
    """How large a body may be, also unpacked, and how long it may take."""

    size: int
    timeout_s: float
    setting: str
    """Which setting gives the size."""
    so: str = ""
    """What a refusal means for the client."""

    def refusal(self, status: int, kind: str, detail: str, headers: Mapping[str, str] | None = None) -> Problem:
        """The problem for a body that is refused."""
        return Problem(status, kind, f"{detail} {self.so}".rstrip(), headers=headers)


def _no_charge(_size: int) -> None:
    """The default: the bytes of all requests together are not limited."""


async def read_body(
    request: Request,
    limits: BodyLimits,
    charge: Callable[[int], None] = _no_charge,
    unpacking: Threads | None = None,
) -> bytes:
    """The whole body, unpacked in a thread of `unpacking` if Content-Encoding is gzip; without threads it is refused.

    `charge` is called with the size of each part, perhaps in that thread, and may refuse it.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    is_packed = encoding in ("gzip", "x-gzip") and unpacking is not None
    if not is_packed and encoding not in ("identity", ""):
        allowed, or_packed = ("identity", "") if unpacking is None else ("gzip", " or with gzip")
        raise Problem(
            415,
            "unknown-encoding",
            f"The body is encoded as {encoding[:40]!r}; send it as it is{or_packed}.",
            headers={"Accept-Encoding": allowed},
        )
    try:
        async with asyncio.timeout(limits.timeout_s):
            packed = await _receive(request, limits, charge)
    except TimeoutError:
        detail = f"The body was not complete after {limits.timeout_s:g} s."
        raise limits.refusal(408, "slow-body", detail) from None
    if not is_packed or unpacking is None:
        return packed
    if len(packed) <= SMALL_GZIP:
        return _unpack(packed, limits, charge)
    return await unpacking.run(_unpack, packed, limits, charge)


async def _receive(request: Request, limits: BodyLimits, charge: Callable[[int], None]) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limits.size:
        raise _too_large(limits, f"it has {declared}")
    parts = []
    size = 0
    has_more = True
    while has_more:  # as in Request.stream, which takes twice the time
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part, has_more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > limits.size:
            raise _too_large(limits, "it has more")
        charge(len(part))
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unpack(packed: bytes, limits: BodyLimits, charge: Callable[[int], None]) -> bytes:
    """Unpack piece by piece, so that a bomb is refused before it fills the memory."""
    pieces = []
    size = 0
    try:
        for piece in inflate(packed):
            size += len(piece)
            if size > limits.size:
                raise _too_large(limits, "unpacked it has more")
            charge(len(piece))
            pieces.append(piece)
    except NotGzip as error:
        raise limits.refusal(400, "not-gzip", f"The body is not valid gzip: {error}.") from None
    return b"".join(pieces)


def _too_large(limits: BodyLimits, found: str) -> Problem:
    return limits.refusal(
        413,
        "body-too-large",
        f"A body may have {limits.size} bytes ({limits.setting}); {found}. Send less at once.",
        headers={"Connection": "close"},
    )
