"""One answer beside the reference interpreter's at the cut that it reports."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from master_dataset.cut import cut_from_json
from serving_layer.verification.from_scratch import OFF
from serving_layer.verification.from_scratch import is_same as is_same_for_verify
from torture.expected_rows import expected_rows, keys_of_rows, zone_of
from torture.truth import Truth
from views.aggregates.top_k import TopKAlgebra
from views.laws import is_rounded
from views.view import View

ROUNDING = 1e-9
RowPosition = tuple[Any, ...]
"""What a row is about: when its period begins, and the values of its keys, as JSON has them."""


@dataclass(frozen=True)
class ServedAnswer:
    """An answer, and what was asked."""

    view: View
    query: dict[str, str]
    body: dict[str, Any]
    at: float
    after: RowPosition | None = None
    """Of a page that is not the first: the last place of the one before."""

    @property
    def meta(self) -> dict[str, Any]:
        """What it says of itself."""
        found: dict[str, Any] = self.body["meta"]
        return found

    @property
    def cut(self) -> dict[int, int]:
        """The events that it claims to hold: all below."""
        return cut_from_json(self.meta["cut"])


@dataclass(frozen=True)
class AnswerComparison:
    """How many values were compared, and what differs."""

    values: int
    differences: tuple[str, ...]


def compare(answered: ServedAnswer, truth: Truth) -> AnswerComparison:
    """Every number of an answer with a recompute from scratch. Everything below its cut was read into `truth`."""
    expected, found, limit = _expected(answered, truth), _found(answered), int(answered.query["limit"])
    rows, has_more = answered.body["rows"], len(expected) > limit
    differences = [f"{len(rows)} rows are about {len(found)} places"] if len(rows) != len(found) else []
    if "order" in answered.query:
        differences += _misplaced(rows, expected, answered.query["order"].removeprefix("-"), limit)
        expected = {position: expected[position] for position in found.keys() & expected.keys()}
    elif has_an_order(answered.view):
        after = () if answered.after is None else _standing(answered.after)
        left = sorted((position for position in expected if _standing(position) > after), key=_standing)
        expected, has_more = {position: expected[position] for position in left[:limit]}, len(left) > limit
        if list(found) != sorted(found, key=_standing):
            differences.append(f"the rows are not in order: {list(found)[:20]}")
    differences += _off_clocks(answered, rows)
    differences += _differing(answered.view, found, expected)
    if (answered.body["next"] is not None) != has_more:
        differences.append(f"the answer has {'one page' if has_more else 'more than one page'}")
    return AnswerComparison(sum(len(answered.view.answers) for _ in found), tuple(differences[:5]))


def last_position(answered: ServedAnswer) -> RowPosition | None:
    """Where the next page goes on."""
    return next(reversed(_found(answered)), answered.after)


def has_an_order(view: View) -> bool:
    """Whether places of its rows can be put in order as they are in JSON. Some values are texts there, and no texts."""
    return not any(each.type.kind in ("decimal", "timestamp") for each in view.key_expressions.values())


def _standing(position: RowPosition) -> tuple[Any, ...]:
    """Null comes before everything."""
    return tuple((False,) if part is None else (True, part) for part in position)


def _off_clocks(answered: ServedAnswer, rows: list[dict[str, Any]]) -> Iterator[str]:
    """A bucket is named by the time zone of the query."""
    zone = zone_of(answered.query)
    for at in (datetime.fromisoformat(row["bucket"]) for row in rows):
        if at.utcoffset() != at.astimezone(zone).utcoffset():
            yield f"{at.isoformat()} is no time of {zone}"


def _expected(answered: ServedAnswer, truth: Truth) -> dict[RowPosition, Any]:
    made = expected_rows(answered.view, answered.query, answered.cut, truth)
    return {tuple(map(_plain, position)): answers for position, answers in made.items()}


def _found(answered: ServedAnswer) -> dict[RowPosition, Any]:
    by = keys_of_rows(answered.query)
    return {
        (int(datetime.fromisoformat(row["bucket"]).timestamp()), *(row[name] for name in by)): row
        for row in answered.body["rows"]
    }


def _misplaced(rows: list[dict[str, Any]], expected: dict[Any, Any], name: str, limit: int) -> Iterator[str]:
    """Of the first rows by a number, the highest first: which of those that are equal in it is not said."""
    best = sorted((answers[name] for answers in expected.values()), reverse=True)[:limit]
    if [row[name] for row in rows] != best:
        yield f"by {name} the first are {[row[name] for row in rows]}, expected {best}"


def _differing(view: View, found: dict[Any, Any], expected: dict[Any, Any]) -> Iterator[str]:
    for position in expected.keys() - found.keys():
        yield f"{position}: no row, expected {expected[position]}"
    for position in found.keys() - expected.keys():
        yield f"{position}: a row {found[position]}, expected none"
    for position in found.keys() & expected.keys():
        for name in view.answers:
            if not is_right(view, name, found[position][name], _plain(expected[position][name])):
                yield f"{position}: {name} is {found[position][name]!r}, expected {expected[position][name]!r}"


def is_right(view: View, name: str, found: Any, expected: Any) -> bool:
    """Whether an answer of a view is what it must be; `wanted` is the reference interpreter's, as JSON has it.

    Sums of doubles, and rankings of more values than they have room for, depend on the order of their events: they may
    be off as far as `tidemark verify` lets them. All others are equal, and rankings too where the reference had room.
    """
    algebras = [view.algebras[each] for each in view.stored_for((name,))]
    is_ranking = any(isinstance(each, TopKAlgebra) for each in algebras)
    if any(map(is_rounded, algebras)) or (is_ranking and any(OFF in each for each in expected)):
        return is_same_for_verify(found, expected)
    return is_same(found, expected)


def is_same(found: Any, expected: Any) -> bool:
    """Whether two values are equal; of floats all but the last digits."""
    if isinstance(expected, float) and isinstance(found, int | float):
        return math.isclose(found, expected, rel_tol=ROUNDING, abs_tol=ROUNDING)
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(is_same, found, expected))
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(is_same(found[name], expected[name]) for name in expected)
    return bool(found == expected)


def _plain(value: Any) -> Any:
    """As JSON has it."""
    match value:
        case tuple() | list():
            return [_plain(each) for each in value]
        case dict():
            return {str(name): _plain(each) for name, each in value.items()}
        case Decimal():
            return str(value)
        case date():
            return value.isoformat()
    return value
