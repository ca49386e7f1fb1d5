"""Cursors: where a page ended, as a string that is opaque to clients.

A cursor holds the hash of its query, the range that relative times meant on the first page, the position of the last
row, and the run and cut of the first page. Clients can forge it, so each part is checked when it comes back: a forged
cursor reaches nothing that a query could not ask for.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from master_dataset.cut import Cut, cut_from_json, cut_to_json
from serving_layer.errors import BadParameter
from serving_layer.query.model import Cursor, Query
from serving_layer.query.order import is_position, positions
from serving_layer.query.result import ResultRow
from serving_layer.query.times import LATEST
from serving_layer.readers.selection import Period

FORMAT = 1
MAX_LENGTH = 100_000
HASH = 32
"""How many characters of the query's hash are kept."""
REMEDY = "Take it from `next` of the page before, or leave it out for the first page."


def write(query: Query, last: ResultRow, run: int, applied: Cut) -> str:
    """The cursor of the page after this row. `run` and `applied` are those of the first page."""
    parts = [FORMAT, hash_of(query), *query.range, run, cut_to_json(applied), positions(query)(last)]
    written = json.dumps(parts, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return base64.urlsafe_b64encode(written.encode()).rstrip(b"=").decode()


def read(text: str) -> Cursor:
    """A cursor from its string. BadParameter where it is none."""
    try:
        if len(text) > MAX_LENGTH:
            raise ValueError  # noqa: TRY301  one way out for all that is wrong
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        version, *parts = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if version != FORMAT:
            raise _invalid(text, "This cursor was made by another version of Tidemark.")
        return _checked(*parts)
    except (ValueError, TypeError, RecursionError):
        raise _invalid(text, "This is not a cursor, or only a part of one.") from None


def check(text: str, cursor: Cursor, query: Query) -> None:
    """BadParameter where the cursor belongs to another query."""
    if cursor.query != hash_of(query) or not is_position(cursor.after, query):
        raise _invalid(
            text,
            "This cursor belongs to another query: a parameter or the view's definition has changed. "
            "Ask for the next page with the same parameters.",
        )


def hash_of(query: Query) -> str:
    """The same for every page of a query."""
    return hashlib.sha256(query.without_page().encode()).hexdigest()[:HASH]


def _checked(query: Any, start: Any, end: Any, run: Any, applied: Any, after: Any) -> Cursor:
    """The parts of a cursor. ValueError where one is impossible; `check` tells whether they fit the query."""
    numbers = [start, end, run, *applied.values()] if isinstance(applied, dict) else [None]
    is_valid = (
        isinstance(query, str)
        and all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 2**63 for each in numbers)
        and start < end <= LATEST
        and all(partition.isascii() and partition.isdecimal() for partition in applied)
        and isinstance(after, list)
    )
    if not is_valid:
        raise ValueError
    return Cursor(query, Period(start, end), tuple(after), run, cut_from_json(applied))


def _invalid(text: str, reason: str) -> BadParameter:
    given = text if len(text) <= 100 else f"{text[:99]}…"
    return BadParameter("cursor", given, f"{reason} {REMEDY}")
