"""Skewness and Kurtosis: the shape of a distribution, of power sums where they are exact, else of central moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import sqrt
from typing import Any

from views.aggregates import numbers
from views.aggregates.algebra import Aggregate, Algebra, Part, Position, check_kind
from views.aggregates.counting import ROUNDED, joined_sql, sum_sql
from views.errors import StateError
from views.typed_expression import TypedExpression
from views.types import DOUBLE

HALF, LOWER = 31, 2**31 - 1
"""A square of 32-bit numbers is split into two halves of 31 bits, so that 64 bits hold each product of halves."""
LARGEST, SMALLEST = 1e30, 1e-30
"""Doubles of a larger size are left out and smaller ones are 0: doubles hold the third power of any sum of squares."""


@dataclass(frozen=True)
class Skewness(Aggregate):
    """The skewness of the population, m3 / m2 ** 1.5; null of no values, and where all are equal."""

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        found = check_kind("Skewness", measure, "bigint", "double")
        return ExactMoments(3) if found.is_small else RoundedMoments(3)


@dataclass(frozen=True)
class Kurtosis(Aggregate):
    """The excess kurtosis of the population, m4 / m2 ** 2 - 3; null of no values, and where all are equal."""

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        found = check_kind("Kurtosis", measure, "bigint", "double")
        return ExactMoments(4) if found.is_small else RoundedMoments(4)


class ExactMoments(Algebra):
    """Of whole numbers of at most 32 bits: how many, and the sums of their powers up to the third or fourth.

    With x * x = a * 2^31 + b, the third power is a * x * 2^31 + b * x, and the fourth
    a * a * 2^62 + a * b * 2^32 + b * b. The state has the sums of these products: Spark has no type that holds a sum of
    fourth powers.
    """

    type = DOUBLE

    def __init__(self, power: int) -> None:
        self.power = power

    @property
    def kinds(self) -> str:  # type: ignore[override]  # it depends on the power
        return "t" * len(self.zero())

    def zero(self) -> tuple[int, ...]:
        return (0,) * (5 if self.power == 3 else 8)

    def add(self, state: tuple[int, ...], value: int, at: Position) -> tuple[int, ...]:
        square = value * value
        a, b = square >> HALF, square & LOWER
        products = (a * value, b * value) if self.power == 3 else (a * value, b * value, a * a, a * b, b * b)
        return self.merge(state, (1, value, square, *products))

    def merge(self, left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(a + b for a, b in zip(left, right, strict=True))

    def merge_all(self, states: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        return tuple(map(sum, zip(*states, strict=True)))

    def present(self, state: tuple[int, ...]) -> float | None:
        count, total, squares, upper, lower, *products = state
        spread = count * squares - total * total
        if spread <= 0:
            return None
        cubes = (upper << HALF) + lower
        if self.power == 3:
            skew = count * count * cubes - 3 * count * total * squares + 2 * total**3
            share = sqrt(Fraction(skew * skew, spread**3))
            return share if skew >= 0 else -share
        high, middle, low = products
        fourths = (high << 2 * HALF) + (middle << HALF + 1) + low
        tails = count**3 * fourths - 4 * count**2 * total * cubes + 6 * count * total**2 * squares - 3 * total**4
        return float(Fraction(tails, spread * spread) - 3)

    def to_parts(self, state: tuple[int, ...]) -> tuple[Part, ...]:
        return tuple(map(str, state))

    def from_parts(self, parts: Sequence[Part]) -> tuple[int, ...]:
        return tuple(int(part or 0) for part in parts)

    def aggregate(self, measure: str, only: str) -> list[str]:
        a, b = f"shiftright({measure} * {measure}, {HALF})", f"(({measure} * {measure}) & {LOWER}L)"
        products = [f"({measure} * {measure})", f"({a} * {measure})", f"({b} * {measure})"]
        if self.power == 4:
            products += [f"({a} * {a})", f"({a} * {b})", f"({b} * {b})"]
        halves = [half for product in products for half in sum_sql(product, only, is_split=True)]
        return [f"count({measure}){only}", f"sum({measure}){only}", *halves]

    def parts(self, columns: Sequence[str]) -> list[str]:
        count, total, *halves = columns
        pairs = zip(halves[::2], halves[1::2], strict=True)
        return [
            f"cast({count} AS string)",
            f"cast(coalesce({total}, 0L) AS string)",
            *(f"cast({joined_sql(pair)} AS string)" for pair in pairs),
        ]


class RoundedMoments(Algebra):
    """Of other numbers: count, mean, and the sums of the second to third or fourth powers of the distances from it.

    They are merged by Pébay's formulas. The sides have an order of their own, so that it does not matter which is left.
    """

    type = DOUBLE
    error = ROUNDED

    def __init__(self, power: int) -> None:
        self.power = power

    @property
    def kinds(self) -> str:  # type: ignore[override]
        return "t" * (self.power + 1)

    def zero(self) -> tuple[Any, ...]:
        return 0, *(0.0,) * self.power

    def add(self, state: tuple[Any, ...], value: float, at: Position) -> tuple[Any, ...]:
        size = abs(value)
        if size > LARGEST:
            return state
        return self.merge(state, (1, float(value) if size >= SMALLEST else 0.0, *(0.0,) * (self.power - 1)))

    def merge(self, left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
        if left[0] == 0 or right[0] == 0:
            return right if left[0] == 0 else left
        (n, mean, two, three, *four), (m, other, two_too, three_too, *four_too) = sorted((left, right))
        both, apart = n + m, other - mean
        small, large = n / both, m / both
        merged = (
            both,
            mean + apart * large,  # exactly the mean where both are the same
            two + two_too + apart * apart * n * large,
            three + three_too + apart**3 * n * large * (small - large) + 3 * apart * (small * two_too - large * two),
        )
        if self.power == 3:
            return merged
        return *merged, (
            four[0] + four_too[0] + apart**4 * n * large * (small * small - small * large + large * large)
            + 6 * apart * apart * (small * small * two_too + large * large * two)
            + 4 * apart * (small * three_too - large * three)
        )  # fmt: skip

    def present(self, state: tuple[Any, ...]) -> float | None:
        count, _, two, *_, last = state
        if not two > 0:
            return None
        if self.power == 3:
            return float(sqrt(count) * last / (two * sqrt(two)))
        return float(count * last / (two * two) - 3)

    def to_parts(self, state: tuple[Any, ...]) -> tuple[Part, ...]:
        return str(state[0]), *map(numbers.to_part, state[1:])

    def from_parts(self, parts: Sequence[Part]) -> tuple[Any, ...]:
        count = int(parts[0] or 0)
        if count < 0:
            raise StateError(f"Moments are of {count} values.")
        return count, *(float(part or 0) for part in parts[1:])

    def aggregate(self, measure: str, only: str) -> list[str]:
        double = f"cast({measure} AS double)"
        value = f"CASE WHEN abs({double}) < {SMALLEST!r}D THEN 0D WHEN abs({double}) <= {LARGEST!r}D THEN {double} END"
        shapes = [f"skewness({value}){only}", f"kurtosis({value}){only}"][: self.power - 2]
        # Spark's average of equal values is not always that value, and two states with means that differ are not of
        # equal values.
        return [f"{function}({value}){only}" for function in ("count", "min", "max", "avg", "var_pop")] + shapes

    def parts(self, columns: Sequence[str]) -> list[str]:
        count, least, most, mean, variance, skewness, *kurtosis = columns
        two = f"({variance} * {count})"
        # What Spark's functions divided is multiplied again; they are null where all values are equal.
        moments = [
            f"CASE WHEN {least} = {most} THEN {least} ELSE {mean} END",
            two,
            f"({skewness} * {two} * sqrt({two}) / sqrt({count}))",
            *(f"(({each} + 3D) * {two} * {two} / {count})" for each in kurtosis),
        ]
        return [f"cast({count} AS string)", *(numbers.part_sql(f"coalesce({each}, 0D)", DOUBLE) for each in moments)]

    def column(self, columns: Sequence[str]) -> str:
        return columns[-1]
