"""Trend: by how much values rise in an hour, the slope of the line that fits values over event times best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from views.aggregates import numbers
from views.aggregates.algebra import Aggregate, Algebra, Part, Position, check_kind
from views.aggregates.counting import HALF, ROUNDED, is_summable, joined_sql, sum_sql, summable
from views.errors import StateError
from views.typed_expression import TypedExpression
from views.types import DOUBLE

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
MILLIS = 1_000


@dataclass(frozen=True)
class Trend(Aggregate):
    """The slope of the regression of values on event times, per hour; null unless two events differ in their times.

    Event times count in whole milliseconds.
    """

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        found = check_kind("Trend", measure, "bigint", "double")
        return RoundedTrend() if found.type == DOUBLE else ExactTrend()


class ExactTrend(Algebra):
    """Of whole numbers: their count, and the sums of t, t * t, v, t * u and t * l, all exact.

    t are milliseconds since 1970. Each value v is u * 2^32 + l, so that Spark's decimals hold the sums of products.
    """

    kinds = "tttttt"
    type = DOUBLE
    by_position = True

    def zero(self) -> tuple[int, ...]:
        return (0,) * 6

    def add(self, state: tuple[int, ...], value: int, at: Position) -> tuple[int, ...]:
        t = at.micros // MILLIS
        return self.merge(state, (1, t, t * t, value, t * (value // HALF), t * (value % HALF)))

    def merge(self, left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(a + b for a, b in zip(left, right, strict=True))

    def merge_all(self, states: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        return tuple(map(sum, zip(*states, strict=True)))

    def present(self, state: tuple[int, ...]) -> float | None:
        count, times, squares, total, upper, lower = state
        spread = count * squares - times * times
        if spread <= 0:
            return None
        return float(Fraction((count * (upper * HALF + lower) - times * total) * HOUR_MS, spread))

    def to_parts(self, state: tuple[int, ...]) -> tuple[Part, ...]:
        return tuple(map(str, state))

    def from_parts(self, parts: Sequence[Part]) -> tuple[int, ...]:
        return tuple(int(part or 0) for part in parts)

    def aggregate(self, measure: str, only: str) -> list[str]:
        halves = (f"shiftright({measure}, 32)", f"({measure} & {HALF - 1}L)")
        products = [f"sum(cast({half} AS decimal(10,0)) * {TIME_AS_DECIMAL}){only}" for half in halves]
        return [*_times_sql(measure, only), *sum_sql(measure, only, is_split=True), *products]

    def parts(self, columns: Sequence[str]) -> list[str]:
        total = f"cast({joined_sql(columns[4:6])} AS string)"
        return [*_times_parts(columns), total, *(f"cast(coalesce({each}, 0) AS string)" for each in columns[6:])]


class RoundedTrend(Algebra):
    """Of doubles: the count, the sums of t and t * t, exact, the mean value, and the sum of products of distances.

    Those are the distances of times and of values from their means. The sides of a merge have an order of their own.
    """

    kinds = "ttttt"
    type = DOUBLE
    error = ROUNDED
    by_position = True

    def zero(self) -> tuple[Any, ...]:
        return 0, 0, 0, 0.0, 0.0

    def add(self, state: tuple[Any, ...], value: float, at: Position) -> tuple[Any, ...]:
        t = at.micros // MILLIS
        return self.merge(state, (1, t, t * t, float(value), 0.0)) if is_summable(value) else state

    def merge(self, left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
        if left[0] == 0 or right[0] == 0:
            return right if left[0] == 0 else left
        (n, times, squares, mean, product), (m, times_too, squares_too, mean_too, product_too) = sorted((left, right))
        later = (times_too * n - times * m) / (n * m)  # whole numbers, divided once
        higher, both = mean_too - mean, n + m
        between = later * higher * (n * m / both)
        total = product + product_too + between
        return both, times + times_too, squares + squares_too, mean + higher * (m / both), total

    def present(self, state: tuple[Any, ...]) -> float | None:
        count, times, squares, _, product = state
        spread = count * squares - times * times
        return float(product * (count / spread) * HOUR_MS) if spread > 0 else None

    def to_parts(self, state: tuple[Any, ...]) -> tuple[Part, ...]:
        return *map(str, state[:3]), numbers.to_part(state[3]), numbers.to_part(state[4])

    def from_parts(self, parts: Sequence[Part]) -> tuple[Any, ...]:
        count, times, squares = (int(part or 0) for part in parts[:3])
        if count < 0:
            raise StateError(f"A trend is of {count} values.")
        return count, times, squares, float(parts[3] or 0), float(parts[4] or 0)

    def aggregate(self, measure: str, only: str) -> list[str]:
        value = summable(measure, DOUBLE)
        # What is subtracted from all times changes nothing but the rounding: a group is within one day.
        near = f"cast(pmod({TIME}, {DAY_MS}L) AS double)"
        of_values = [f"{function}({value}){only}" for function in ("min", "max", "avg")]
        return [*_times_sql(value, only), *of_values, f"covar_pop({near}, {value}){only}"]

    def parts(self, columns: Sequence[str]) -> list[str]:
        least, most, mean, product = columns[4:]
        # Spark's average of equal values is not always that value.
        mean = f"coalesce(CASE WHEN {least} = {most} THEN {least} ELSE {mean} END, 0D)"
        product = f"coalesce({product} * {columns[0]}, 0D)"
        return [*_times_parts(columns), numbers.part_sql(mean, DOUBLE), numbers.part_sql(product, DOUBLE)]


TIME = "unix_millis(event_time)"
TIME_AS_DECIMAL = f"cast({TIME} AS decimal(13,0))"


def _times_sql(value: str, only: str) -> list[str]:
    """Of the events that have a value: how many, the sum of their times in two halves, and that of their squares."""
    square = f"CASE WHEN {value} IS NOT NULL THEN {TIME_AS_DECIMAL} * {TIME_AS_DECIMAL} END"
    times = sum_sql(f"(CASE WHEN {value} IS NOT NULL THEN {TIME} END)", only, is_split=True)
    return [f"count({value}){only}", *times, f"sum({square}){only}"]


def _times_parts(columns: Sequence[str]) -> list[str]:
    times, squares = joined_sql(columns[1:3]), f"coalesce({columns[3]}, 0)"
    return [f"cast({columns[0]} AS string)", f"cast({times} AS string)", f"cast({squares} AS string)"]
