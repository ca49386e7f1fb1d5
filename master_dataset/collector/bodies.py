"""Bodies with events and messages: read, parsed, and refused where they hold too much."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request

from infra.rest import bodies
from infra.rest.bodies import BodyLimits
from infra.rest.problems import Problem
from infra.threads import P, T, Threads
from master_dataset.collector.limits import BYTES_PER_DELIMITER, BYTES_PER_RECORD, Charge, Limits
from master_dataset.errors import InvalidEvent
from views.strict_json import parse_json, parse_list_with_texts

LARGE_BODY = 1 << 20
"""Bodies of this size and above are parsed in a thread: on the event loop, other requests would wait."""

DELIMITERS = (b",", b":", b"{", b"[")
"""What JSON has one of for each value, or more. Those in texts are counted too: not to count them takes too long."""


async def read_body(request: Request, limits: BodyLimits, charge: Charge, threads: Threads) -> bytes:
    """The whole body, charged for from its first byte on, and unpacked beside the event loop."""
    return await bodies.read_body(request, limits, charge.add, threads)


async def beside_loop(threads: Threads, body: bytes, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Do the work of a body: at once if it is small, in a thread if it is large."""
    if len(body) < LARGE_BODY:
        return work(*arguments, **named)
    return await threads.run(work, *arguments, **named)


def parse_within(body: bytes, limits: BodyLimits, charge: Charge, most: int | None = None) -> Any:
    """The JSON in a body, unless it would take far more memory than it has bytes. It is charged for as such."""
    charge.add_parsed(check_density(body, limits, most))
    return parse_body(body)


def charge_for_now(body: bytes, limits: BodyLimits, charge: Charge) -> int:
    """The same charge for work that parses a body and does not wait, to be given back when its values are gone.

    Nothing for a small body: such work is done on the event loop, one body at a time.
    """
    if len(body) < LARGE_BODY and len(body) <= limits.size // BYTES_PER_DELIMITER:
        return 0
    delimiters = check_density(body, limits)
    return charge.add_parsed(delimiters) if len(body) >= LARGE_BODY else 0


def parse_body(body: bytes) -> Any:
    """The JSON in a body, whatever Content-Type says."""
    with _as_problem():
        return parse_json(body)


def parse_events(body: bytes, max_texts: int) -> tuple[list[Any], Sequence[bytes | None]]:
    """The events in a body that is one JSON value, with the texts of at most `max_texts` of them."""
    with _as_problem():
        return parse_list_with_texts(body, max_texts)


@contextmanager
def _as_problem() -> Iterator[None]:
    try:
        yield
    except InvalidEvent as error:
        raise invalid_body(error.where, error.reason, status=400) from None
    except ValueError as error:  # nothing known raises it; if something does, the body is at fault
        raise invalid_body("", f"this cannot be read: {error}", status=400) from None


def check_density(body: bytes, limits: BodyLimits, most: int | None = None) -> int:
    """Refuse JSON such as millions of `{},` before it is parsed. What is not refused has so many values, or fewer."""
    so_many = f"one for each {BYTES_PER_DELIMITER} of its {limits.size} bytes ({limits.setting})"
    if most is None:
        most = limits.size // BYTES_PER_DELIMITER
    else:
        so_many = limits.setting
    delimiters = sum(map(body.count, DELIMITERS))
    if delimiters > most:
        raise Problem(
            413,
            "too-many-values",
            f"A body may have {most} commas, colons and opening brackets, {so_many}; this has {delimiters}. "
            f"{limits.so} Send it in several requests.",
        )
    return delimiters


def invalid_body(where: str, reason: str, *, status: int = 422) -> Problem:
    """The problem for a body that is wrong at `where`."""
    where = where if len(where) <= 200 else f"{where[:197]}..."
    at = f"The body is wrong at {where}: " if where else "The body is wrong: "
    return Problem(status, "invalid-body", f"{at}{reason}. Nothing was stored.", where=where, reason=reason)


def check_batch(count: int, limits: Limits, charge: Charge) -> None:
    """Refuse more records than one request may have, and charge for those it has."""
    if count > limits.batch:
        raise Problem(
            413,
            "batch-too-large",
            f"A request may have {limits.batch} records (collector_max_batch); this has at least {count}. Nothing was "
            "stored. Send them in several requests.",
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
