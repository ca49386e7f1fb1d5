"""Encode results as JSON, NDJSON or CSV, and choose the format of a request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import tzinfo
from functools import lru_cache
from itertools import islice
from math import inf
from typing import Any, Literal

import orjson

from infra.times import iso_utc
from master_dataset.cut import cut_to_json
from serving_layer.errors import NotAcceptable, TooLarge
from serving_layer.query.model import Query
from serving_layer.query.parameters import one_of, shown
from serving_layer.query.result import Provenance, Result, ResultRow
from serving_layer.query.times import iso, parse_zone
from views.short_texts import MAX_BYTES

Format = Literal["json", "ndjson", "csv"]
MEDIA_TYPES: dict[Format, str] = {
    "json": "application/json",
    "ndjson": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8; header=present",
}
ACCEPTED: dict[Format, tuple[str, ...]] = {
    "json": ("application/json",),
    "ndjson": ("application/x-ndjson", "application/ndjson"),
    "csv": ("text/csv",),
}
"""Their names in an Accept header. Of equally acceptable formats the first is used."""
WRITTEN_AT_ONCE = 500
"""So many rows are written before their size is checked."""
MAX_TIMES = 10_000
"""Times whose texts are remembered."""
Row = dict[str, Any]
"""A row as a JSON object."""
LARGEST = 2**64 - 1
"""The largest integer that orjson writes; the smallest is -2^63."""
QUALITY = re.compile(r"(?:0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)")
FORMULA = re.compile(r"[=+\-@\t\r\n']")
PLAIN_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


# ---- format -------------------------------------------------------------------


def choose_format(given: str | None, accept: str | None) -> Format:
    """The format that the parameter names, or else the one that the Accept header prefers; NotAcceptable if none."""
    if given is not None:
        return one_of("format", given, MEDIA_TYPES)  # type: ignore[return-value]
    if not accept or not accept.strip():
        return "json"
    qualities = {each: _quality(each, accept) for each in ACCEPTED}
    best = max(qualities, key=lambda each: qualities[each])
    if not qualities[best]:
        formats = [names[0] for names in ACCEPTED.values()]
        raise NotAcceptable(
            f"Accept is {shown(accept)}; this is available as {' or '.join(formats)}.",
            given=accept[:200], allowed=formats,
        )  # fmt: skip
    return best


def _quality(of: Format, accept: str) -> float:
    """The quality that an Accept header gives to a format, by the most specific range that matches."""
    by_range = {}
    for each in accept.split(","):
        name, *parameters = (part.strip().lower() for part in each.split(";"))
        quality = next((part[2:].strip() for part in parameters if part.startswith("q=")), "1")
        by_range[name] = float(quality) if QUALITY.fullmatch(quality) else 0.0
    ranges = (*ACCEPTED[of], f"{ACCEPTED[of][0].partition('/')[0]}/*", "*/*")
    return next((by_range[name] for name in ranges if name in by_range), 0.0)


# ---- JSON --------------------------------------------------------------------


def body(result: Result, as_format: Format, max_mb: float = inf) -> bytes:
    """The body of a response. TooLarge where it has more than `max_mb`."""
    return {"json": to_json, "ndjson": to_ndjson, "csv": to_csv}[as_format](result, max_mb)


def to_json(result: Result, max_mb: float = inf) -> bytes:
    """`{"rows": [...], "next": ..., "meta": {...}}`."""
    written = b",".join(_written(result, rows(result), lambda some: dumps(some)[1:-1], max_mb))
    return json_document(written, result.next, result.meta)


def json_document(written: bytes, following: str | None, of: Provenance) -> bytes:
    """The same with rows that are written already."""
    return b'{"rows":[%b],"next":%b,"meta":%b}' % (written, dumps(following), dumps(meta(of)))


def written_row(query: Query, row: ResultRow) -> bytes:
    """One row as JSON."""
    return dumps(_object(query.by, row, parse_zone("tz", query.tz)))


def to_ndjson(result: Result, max_mb: float = inf) -> bytes:
    """A line for each row, then `{"meta": {...}, "next": ...}`: without the last line the result is incomplete."""
    lines = _written(result, rows(result), lambda some: b"".join(dumps(row) + b"\n" for row in some), max_mb)
    return b"".join([*lines, dumps({"meta": meta(result.meta), "next": result.next}) + b"\n"])


def _written(
    result: Result, given: Iterator[Row], write: Callable[[list[Row]], bytes], max_mb: float
) -> Iterator[bytes]:
    """The rows as bytes, some at a time. TooLarge as soon as they are too many: the rest is not written."""
    size = count = 0
    while some := list(islice(given, WRITTEN_AT_ONCE)):
        part = write(some)
        size, count = size + len(part), count + len(some)
        if size > max_mb * 1_000_000:
            raise too_large(max_mb, int(count * max_mb * 1_000_000 / size), len(result.rows))
        yield part


def too_large(max_mb: float, rows_that_fit: int, row_count: int) -> TooLarge:
    """The error of an answer whose body would be too large."""
    limit = max(min(rows_that_fit, row_count - 1), 1)
    how = (
        f"Ask for smaller pages, for example limit={limit}, and go on with `next` (cursor)"
        if row_count > 1
        else "Ask for fewer answers (answers)"
    )
    return TooLarge(
        f"The answer is larger than {max_mb:g} MB (serving_max_answer_mb). {how}, or ask for fewer keys or answers.",
        limit="serving_max_answer_mb", parameter="limit", allowed=limit,
    )  # fmt: skip


def document(result: Result) -> dict[str, Any]:
    """A result as a JSON document."""
    return {"rows": [*rows(result)], "next": result.next, "meta": meta(result.meta)}


def rows(result: Result) -> Iterator[dict[str, Any]]:
    """The rows as JSON objects."""
    zone = parse_zone("tz", result.meta.tz)
    for row in result.rows:
        yield _object(result.by, row, zone)


def _object(by: Sequence[str], row: ResultRow, zone: tzinfo) -> Row:
    return {
        "bucket": _written_time(row.period.start, zone),
        **dict(zip(by, row.key, strict=True)),
        **row.answers,
        **_added(row),
    }


@lru_cache(MAX_TIMES)
def _written_time(start: int, zone: tzinfo) -> str:
    """Many rows are of one period, and many queries of the same periods."""
    return iso(start, zone)


def _added(row: ResultRow) -> dict[str, Any]:
    added = {"previous": row.previous, "explain": row.explain}
    return {name: value for name, value in added.items() if value is not None}


def meta(of: Provenance) -> dict[str, Any]:
    """The provenance of a result as a JSON object."""
    zone = parse_zone("tz", of.tz)
    return {
        "view": of.view,
        "version": of.version,
        "source": of.source,
        "range": {"from": iso(of.range.start, zone), "to": iso(of.range.end, zone), "grain": of.grain, "tz": of.tz},
        "batch": {
            "run": of.batch.run,
            "cut": cut_to_json(of.batch.cut),
            "published": iso_utc(of.batch.published),
            "read": of.batch.read,
        },
        "speed": None
        if of.speed is None
        else {
            "applied": cut_to_json(of.speed.applied),
            "published_run": of.speed.published_run,
            "lag_s": of.speed.lag_s,
            "lag_events": of.speed.lag_events,
            "read": of.speed.read,
        },
        "cut": cut_to_json(of.cut),
        "complete": of.complete,
        "degraded": of.degraded,
        "why": of.why,
        "answers": of.answers,
        "since": of.since,
        "shortened_keys": of.shortened_keys,
        "max_key_bytes": MAX_BYTES,
    }


def dumps(value: Any) -> bytes:
    """JSON. Integers beyond 64 bits, which sums can be, are written out too; orjson alone refuses them."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return orjson.dumps(_with_large_numbers(value))


def _with_large_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_large_numbers(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_large_numbers(each) for each in value]
    if isinstance(value, int) and not -(2**63) <= value <= LARGEST:
        return orjson.Fragment(str(value))
    return value


# ---- CSV ---------------------------------------------------------------------


def to_csv(result: Result, max_mb: float = inf) -> bytes:
    """A header and a line for each row (RFC 4180). Null is an empty field, an empty string is `""`.

    Lists and objects are JSON. `meta` and `next` do not fit in: see `meta_headers`.
    """
    columns = dict.fromkeys(("bucket", *result.by, *result.meta.answers))
    written = [*rows(result)]
    for row in written:
        columns |= dict.fromkeys(row)

    def lines(some: list[Row]) -> bytes:
        return "".join(f"{','.join(_field(row.get(name)) for name in columns)}\r\n" for row in some).encode()

    header = f"{','.join(map(_field, columns))}\r\n".encode()
    return b"".join([header, *_written(result, iter(written), lines, max_mb)])


def _field(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return _text(value)
        case dict() | list():
            return _quoted(dumps(value).decode())
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
    return str(value)  # a date


def _text(value: str) -> str:
    """A string. One that a spreadsheet could run as a formula gets a leading `'`, and so does one that has it already.

    Strings come from events, which anybody can send. The string itself is what follows one leading `'`.
    """
    if FORMULA.match(value) and not PLAIN_NUMBER.fullmatch(value):
        value = f"'{value}"
    return _quoted(value) if not value or any(character in value for character in ',"\r\n') else value


def _quoted(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'


def meta_headers(of: Provenance, next_cursor: str | None) -> dict[str, str]:
    """What JSON has beside the rows, as headers of a CSV response."""
    headers = {
        "Tidemark-Cut": _ascii(cut_to_json(of.cut)),
        "Tidemark-Complete": _ascii(of.complete),
        "Tidemark-Degraded": _ascii(of.degraded),
        "Tidemark-Meta": _ascii(meta(of)),
    }
    return headers if next_cursor is None else {**headers, "Tidemark-Next": next_cursor}


def _ascii(value: Any) -> str:
    """JSON that a header can hold: one line of ASCII."""
    return json.dumps(value, separators=(",", ":"))
