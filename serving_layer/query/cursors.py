"""Cursors: where a page of rows ended, as a text that is opaque to whoever asks.

A cursor holds the hash of its question, the range that relative times meant on the first page, the position of
the last row, and the run and cut at which paging began. It is a stranger's text: each part is checked when it comes
back, and a forged one can ask for nothing that a question could not.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any, NamedTuple

from master_dataset.cut import Cut, cut_from_json, cut_to_json
from serving_layer.errors import BadParameter
from serving_layer.query.model import Period, Query
from serving_layer.query.order import Position, is_position, positions
from serving_layer.query.result import ResultRow
from serving_layer.query.times import LATEST

FORMAT = 1
LONGEST = 100_000
HASH = 32
"""So many characters of the question's hash."""
REMEDY = "Take it from `next` of the page before, or leave it out for the first page."


class Cursor(NamedTuple):
    """Where a page ended."""

    question: str
    range: Period
    after: Position
    run: int
    applied: Cut
    """Of when paging began. Later pages have newer events too: a row whose position changed meanwhile may be missed."""


def write(question: Query, last: ResultRow, run: int, applied: Cut) -> str:
    """The cursor of the page after this row. `run` and `applied` are those of the first page."""
    parts = [FORMAT, hash_of(question), *question.range, run, cut_to_json(applied), positions(question)(last)]
    written = json.dumps(parts, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return base64.urlsafe_b64encode(written.encode()).rstrip(b"=").decode()


def read(text: str) -> Cursor:
    """The inverse. BadParameter where the text is no cursor."""
    try:
        if len(text) > LONGEST:
            raise ValueError  # noqa: TRY301  one way out for all that is wrong
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        version, *parts = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if version != FORMAT:
            raise _refused(text, "This cursor was made by another version of Tidemark.")
        return _checked(*parts)
    except (ValueError, TypeError, RecursionError):
        raise _refused(text, "This is no cursor, or not the whole of it.") from None


def check(text: str, cursor: Cursor, question: Query) -> None:
    """BadParameter where the cursor belongs to another question."""
    if cursor.question != hash_of(question) or not is_position(cursor.after, question):
        raise _refused(
            text,
            "This cursor belongs to another question: a parameter was changed, or the view's definition. "
            "Ask for the next page with the same parameters.",
        )


def hash_of(question: Query) -> str:
    """The same for every page of a question."""
    return hashlib.sha256(question.without_page().encode()).hexdigest()[:HASH]


def _checked(question: Any, start: Any, end: Any, run: Any, applied: Any, after: Any) -> Cursor:
    """The parts of a cursor. ValueError where one of them cannot be; whether they fit the question is seen later."""
    numbers = [start, end, run, *applied.values()] if isinstance(applied, dict) else [None]
    are_right = (
        isinstance(question, str)
        and all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 2**63 for each in numbers)
        and start < end <= LATEST
        and all(partition.isascii() and partition.isdecimal() for partition in applied)
        and isinstance(after, list)
    )
    if not are_right:
        raise ValueError
    return Cursor(question, Period(start, end), tuple(after), run, cut_from_json(applied))


def _refused(text: str, why: str) -> BadParameter:
    given = text if len(text) <= 100 else f"{text[:99]}…"
    return BadParameter("cursor", given, f"{why} {REMEDY}")
