"""Bodies of requests: read within limits, unpacked, and never trusted to match their headers."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.requests import Request

from infra.rest.problems import Problem

GZIP = 16 + zlib.MAX_WBITS
INFLATE_STEP = 1 << 20


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


async def read_body(request: Request, limits: BodyLimits, charge: Callable[[int], None] = _no_charge) -> bytes:
    """The whole body, unpacked if Content-Encoding is gzip. `charge` is called with each part, and may refuse it."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "x-gzip", ""):
        raise Problem(
            415,
            "unknown-encoding",
            f"The body is encoded as {encoding[:40]!r}; send it as it is or with gzip.",
            headers={"Accept-Encoding": "gzip"},
        )
    try:
        async with asyncio.timeout(limits.timeout_s):
            packed = await _receive(request, limits, charge)
    except TimeoutError:
        detail = f"The body was not complete after {limits.timeout_s:g} s."
        raise limits.refusal(408, "slow-body", detail) from None
    return _unpack(packed, limits, charge) if "gzip" in encoding else packed


async def _receive(request: Request, limits: BodyLimits, charge: Callable[[int], None]) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limits.size:
        raise _too_large(limits, f"it has {declared}")
    parts = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limits.size:
            raise _too_large(limits, "it has more")
        charge(len(part))
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unpack(packed: bytes, limits: BodyLimits, charge: Callable[[int], None]) -> bytes:
    """Inflate step by step, so that a bomb is refused before it fills the memory."""
    unpacked = bytearray()
    rest = packed
    while rest:
        inflater = zlib.decompressobj(GZIP)
        while not inflater.eof:
            try:
                step = inflater.decompress(rest, INFLATE_STEP)
            except zlib.error as error:
                raise limits.refusal(400, "not-gzip", f"The body is not valid gzip: {error}.") from None
            rest = inflater.unconsumed_tail
            if len(unpacked) + len(step) > limits.size:
                raise _too_large(limits, "unpacked it has more")
            charge(len(step))
            unpacked += step
            if not step and not rest and not inflater.eof:
                raise limits.refusal(400, "not-gzip", "The body is gzip that ends too early.")
        rest = inflater.unused_data  # gzip files may follow each other
    if not unpacked and not packed:
        return b""
    return bytes(unpacked)


def _too_large(limits: BodyLimits, found: str) -> Problem:
    return limits.refusal(
        413,
        "body-too-large",
        f"A body may have {limits.size} bytes ({limits.setting}); {found}. Send less at once.",
        headers={"Connection": "close"},
    )
