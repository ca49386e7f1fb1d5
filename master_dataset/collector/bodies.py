"""Bodies of requests: read within limits, unpacked, and never trusted to be what their headers say."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from infra.problems import Problem
from master_dataset.collector.limits import BYTES_PER_RECORD, Charge, Limits
from master_dataset.collector.threads import P, T, Threads
from master_dataset.errors import InvalidEvent
from master_dataset.strict_json import parse_json

GZIP = 16 + zlib.MAX_WBITS
INFLATE_STEP = 1 << 20
LARGE_BODY = 1 << 20
"""Bytes from which on the work with a body leaves the event loop: others would wait for it."""


async def read_body(request: Request, limits: Limits, charge: Charge) -> bytes:
    """The whole body, unpacked where Content-Encoding says gzip."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "x-gzip", ""):
        raise Problem(
            415,
            "unknown-encoding",
            f"The body is encoded as {encoding[:40]!r}; send it as it is or with gzip.",
            headers={"Accept-Encoding": "gzip"},
        )
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            packed = await _receive(request, limits, charge)
    except TimeoutError:
        raise Problem(
            408, "slow-body", f"The body was not complete after {limits.body_timeout_s:g} s. Nothing was stored."
        ) from None
    return _unpack(packed, limits, charge) if "gzip" in encoding else packed


async def _receive(request: Request, limits: Limits, charge: Charge) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limits.body:
        raise _too_large(limits, f"it has {declared}")
    parts = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limits.body:
            raise _too_large(limits, "it has more")
        charge.add(len(part))
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unpack(packed: bytes, limits: Limits, charge: Charge) -> bytes:
    """Inflate step by step, so that a bomb is refused before it fills the memory."""
    unpacked = bytearray()
    rest = packed
    while rest:
        inflater = zlib.decompressobj(GZIP)
        while not inflater.eof:
            try:
                step = inflater.decompress(rest, INFLATE_STEP)
            except zlib.error as error:
                raise Problem(400, "not-gzip", f"The body is not valid gzip: {error}. Nothing was stored.") from None
            rest = inflater.unconsumed_tail
            if len(unpacked) + len(step) > limits.body:
                raise _too_large(limits, "unpacked it has more")
            charge.add(len(step))
            unpacked += step
            if not step and not rest and not inflater.eof:
                raise Problem(400, "not-gzip", "The body is gzip that ends too early. Nothing was stored.")
        rest = inflater.unused_data  # gzip files may follow each other
    if not unpacked and not packed:
        return b""
    return bytes(unpacked)


def _too_large(limits: Limits, found: str) -> Problem:
    return Problem(
        413,
        "body-too-large",
        f"A body may have {limits.body} bytes (collector_max_body_mb); {found}. Nothing was stored. Send less at once.",
        headers={"Connection": "close"},
    )


async def beside_loop(threads: Threads, body: bytes, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Do what a body asks for: at once if it is small, in a thread if it is large."""
    if len(body) < LARGE_BODY:
        return work(*arguments, **named)
    return await threads.run(work, *arguments, **named)


def parse_body(body: bytes) -> Any:
    """The JSON in a body, whatever Content-Type says."""
    try:
        return parse_json(body)
    except InvalidEvent as error:
        raise invalid_body(error.where, error.reason, status=400) from None
    except ValueError as error:  # nothing known raises it; whatever does, the body is at fault and not the collector
        raise invalid_body("", f"this cannot be read: {error}", status=400) from None


def invalid_body(where: str, reason: str, *, status: int = 422) -> Problem:
    """The problem for a body that says something impossible at `where`."""
    where = where if len(where) <= 200 else f"{where[:197]}..."
    place = f"The body is wrong at {where}: " if where else "The body is wrong: "
    return Problem(status, "invalid-body", f"{place}{reason}. Nothing was stored.", where=where, reason=reason)


def check_batch(count: int, limits: Limits, charge: Charge) -> None:
    """Refuse more records than one request may have, and charge for those it has."""
    if count > limits.batch:
        raise Problem(
            413,
            "batch-too-large",
            f"A request may have {limits.batch} records (collector_max_batch); this has {count}. Nothing was stored. "
            "Send them in several requests.",
        )
    charge.add(count * BYTES_PER_RECORD)


def check_record_size(where: str, size: int, limits: Limits) -> None:
    """Refuse a record that Kafka would refuse."""
    if size > limits.event:
        raise Problem(
            413,
            "event-too-large",
            f"{where or 'The record'} has {size} bytes; at most {limits.event} are taken (collector_max_event_kb). "
            "Nothing was stored.",
            where=where,
        )
