"""Histogram: how many values fall between declared bounds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from views.aggregates.algebra import Aggregate, Algebra, Part, Position, check_kind
from views.errors import ExpressionError, StateError
from views.typed_expression import TypedExpression
from views.types import literal

MAX_BOUNDS = 100
LARGEST_BOUND = 2**53
"""Up to here a whole number is a double too, and Spark compares with doubles: -2^53 - 1 would become -2^53."""


@dataclass(frozen=True)
class Histogram(Aggregate):
    """Counts below the first of `bounds`, from each bound up to the next, and from the last on.

    `bounds=(10, 100)` -> [{"below": 10, "count": 3}, {"from": 10, "below": 100, "count": 1}, {"from": 100, "count": 0}]
    """

    bounds: tuple[float, ...] = ()

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        check_kind("Histogram", measure, "bigint", "double")
        bounds: Any = self.bounds
        is_right = isinstance(bounds, tuple | list) and all(map(_is_bound, bounds))
        if not is_right or not 1 <= len(bounds) <= MAX_BOUNDS or any(low >= high for low, high in pairwise(bounds)):
            raise ExpressionError(
                f"bounds is {bounds!r}; it should be 1 to {MAX_BOUNDS} rising numbers of at most 2^53, "
                "like (10, 100, 1000)."
            )
        return HistogramAlgebra(tuple(bounds))

    def meaning(self) -> dict[str, Any]:
        return {"bounds": [float(bound) for bound in self.bounds]}


def _is_bound(bound: Any) -> bool:
    return type(bound) in (int, float) and -LARGEST_BOUND < bound <= LARGEST_BOUND


class HistogramAlgebra(Algebra):
    kinds = "t"

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds

    def zero(self) -> tuple[int, ...]:
        return (0,) * (len(self.bounds) + 1)

    def add(self, state: tuple[int, ...], value: float, at: Position) -> tuple[int, ...]:
        place = bisect_right(self.bounds, value)
        return (*state[:place], state[place] + 1, *state[place + 1 :])

    def merge(self, left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(a + b for a, b in zip(left, right, strict=True))

    def present(self, state: tuple[int, ...]) -> list[dict[str, float]]:
        found = []
        for place, count in enumerate(state):
            begin = {"from": self.bounds[place - 1]} if place else {}
            end = {"below": self.bounds[place]} if place < len(self.bounds) else {}
            found.append({**begin, **end, "count": count})
        return found

    def to_parts(self, state: tuple[int, ...]) -> tuple[Part, ...]:
        return (",".join(map(str, state)),)

    def from_parts(self, parts: Sequence[Part]) -> tuple[int, ...]:
        counts = tuple(map(int, str(parts[0]).split(",")))
        if len(counts) != len(self.bounds) + 1:
            raise StateError(f"A histogram has {len(counts)} counts, where {len(self.bounds) + 1} were expected.")
        return counts

    def aggregate(self, measure: str, only: str) -> list[str]:
        bounds = [literal(float(bound)) for bound in self.bounds]
        conditions = [f"{measure} < {bounds[0]}"]
        conditions += [f"{measure} >= {low} AND {measure} < {high}" for low, high in pairwise(bounds)]
        conditions.append(f"{measure} >= {bounds[-1]}")
        return [f"count(CASE WHEN {condition} THEN 1 END){only}" for condition in conditions]

    def parts(self, columns: Sequence[str]) -> list[str]:
        return [f"concat_ws(',', {', '.join(f'cast({column} AS string)' for column in columns)})"]

    def column(self, columns: Sequence[str]) -> str:
        return f"array({', '.join(columns)})"

    def column_value(self, state: tuple[int, ...]) -> list[int]:
        return list(state)
