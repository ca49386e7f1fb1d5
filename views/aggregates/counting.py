"""Count, Sum, Average, Variance and StdDev: exact for whole numbers and decimals, rounded like any sum for doubles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from math import sqrt
from typing import Any

from views.aggregates import numbers
from views.aggregates.algebra import Aggregate, Algebra, Part, Position, check_kind
from views.errors import ExpressionError, StateError
from views.field_types import FieldType
from views.typed_expression import TypedExpression
from views.types import BIGINT, DOUBLE, EXACT

ROUNDED = "rounding only"
WIDEST_SUM = 28
"""Digits of a decimal that can be summed 10^10 times within the 38 that Spark has."""
HALF = 2**32
LARGEST_DOUBLE = 1e150
"""Doubles of a larger size are left out, as null is: no sum or sum of squares can then overflow."""


@dataclass(frozen=True)
class Count(Aggregate):
    """How many events; of an expression: how many where it is not null."""

    of: str = ""

    def expression(self) -> str | None:
        return self.of or None

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        return CountAlgebra()


@dataclass(frozen=True)
class Sum(Aggregate):
    """The sum; 0 of no values."""

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        return SumAlgebra(_number("Sum", measure))


@dataclass(frozen=True)
class Average(Aggregate):
    """The mean, rounded once; null of no values."""

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        return AverageAlgebra(_number("Average", measure))


@dataclass(frozen=True)
class Variance(Aggregate):
    """The variance of a sample (divided by n - 1), or of the whole population (by n)."""

    population: bool = False

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        found = self._checked("Variance", measure)
        return (ExactVariance if found.is_small else RoundedVariance)(population=self.population)

    def meaning(self) -> dict[str, Any]:
        return {"population": self.population}

    def _checked(self, name: str, measure: TypedExpression | None) -> TypedExpression:
        population: object = self.population
        if not isinstance(population, bool):
            raise ExpressionError(f"population is {population!r}; it should be True or False.")
        return check_kind(name, measure, "bigint", "double")


@dataclass(frozen=True)
class StdDev(Variance):
    """The square root of the variance."""

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        found = self._checked("StdDev", measure)
        return (ExactVariance if found.is_small else RoundedVariance)(population=self.population, root=True)


def _number(name: str, measure: TypedExpression | None) -> TypedExpression:
    found = check_kind(name, measure, "bigint", "double", "decimal")
    if found.type.kind == "decimal" and found.type.precision > WIDEST_SUM:
        raise ExpressionError(
            f"{name} of {found.type.ddl()} could need more than 38 digits. "
            f"Cast it: cast(… as decimal({WIDEST_SUM},{min(found.type.scale, WIDEST_SUM)}))."
        )
    return found


class CountAlgebra(Algebra):
    kinds = "t"
    type = BIGINT

    def zero(self) -> int:
        return 0

    def add(self, state: int, value: Any, at: Position) -> int:
        return state + 1

    def add_all(self, state: int, values: Sequence[Any], at: Sequence[Position]) -> int:
        return state + len(values)

    def merge(self, left: int, right: int) -> int:
        return left + right

    def merge_all(self, states: Sequence[int]) -> int:
        return sum(states)

    def present(self, state: int) -> int:
        return state

    def to_parts(self, state: int) -> tuple[Part, ...]:
        return (str(state),)

    def from_parts(self, parts: Sequence[Part]) -> int:
        return int(parts[0] or 0)

    def aggregate(self, measure: str, only: str) -> list[str]:
        return [f"count({measure}){only}"]

    def parts(self, columns: Sequence[str]) -> list[str]:
        return [f"cast({columns[0]} AS string)"]

    def column(self, columns: Sequence[str]) -> str:
        return columns[0]


class SumAlgebra(Algebra):
    kinds = "t"
    type: FieldType

    def __init__(self, measure: TypedExpression) -> None:
        self.type = measure.type
        self.is_small = measure.is_small
        self.error = ROUNDED if self.type == DOUBLE else None

    def zero(self) -> Any:
        return 0.0 if self.type == DOUBLE else Decimal(0).scaleb(-self.type.scale) if self._is_decimal else 0

    def add(self, state: Any, value: Any, at: Position) -> Any:
        if not is_summable(value):
            return state
        return EXACT.add(state, value) if self._is_decimal else state + value

    def add_all(self, state: Any, values: Sequence[Any], at: Sequence[Position]) -> Any:
        if self._is_decimal:
            return reduce(EXACT.add, values, state)
        if self.type == DOUBLE:
            values = [value for value in values if -LARGEST_DOUBLE <= value <= LARGEST_DOUBLE]
        return sum(values, state)

    def merge(self, left: Any, right: Any) -> Any:
        return EXACT.add(left, right) if self._is_decimal else left + right

    def present(self, state: Any) -> Any:
        return numbers.present(state)

    def to_parts(self, state: Any) -> tuple[Part, ...]:
        return (numbers.to_part(state),)

    def from_parts(self, parts: Sequence[Part]) -> Any:
        if parts[0] is None:
            raise StateError("A sum has no value; that of no events is 0.")
        return numbers.from_part(parts[0], self.type)

    def aggregate(self, measure: str, only: str) -> list[str]:
        return sum_sql(summable(measure, self.type), only, is_split=self._is_split)

    def parts(self, columns: Sequence[str]) -> list[str]:
        return [numbers.part_sql(self.column(columns), self.type)]

    def column(self, columns: Sequence[str]) -> str:
        if self._is_split:
            return joined_sql(columns)
        zero = {"double": "0D", "bigint": "0L"}.get(self.type.kind, "0")
        return f"coalesce({columns[0]}, {zero})"

    def column_value(self, state: Any) -> Any:
        return Decimal(state) if self._is_split else state

    @property
    def _is_decimal(self) -> bool:
        return self.type.kind == "decimal"

    @property
    def _is_split(self) -> bool:
        return self.type == BIGINT and not self.is_small


def adds_up(algebra: Algebra | None) -> bool:
    """Whether its states are whole numbers that merge by addition: a count, or a sum of whole numbers."""
    return isinstance(algebra, CountAlgebra) or (isinstance(algebra, SumAlgebra) and algebra.is_whole)


def is_summable(value: Any) -> bool:
    """Whether a value is not too large to be summed."""
    return not isinstance(value, float) or abs(value) <= LARGEST_DOUBLE


def summable(measure: str, kind: FieldType) -> str:
    """The same in Spark: the measure, or null."""
    return f"CASE WHEN abs({measure}) <= {LARGEST_DOUBLE!r}D THEN {measure} END" if kind == DOUBLE else measure


def sum_sql(measure: str, only: str, *, is_split: bool) -> list[str]:
    """A sum. One of 64-bit numbers is made of two, of the upper and of the lower halves: neither can overflow."""
    if is_split:
        return [f"sum(shiftright({measure}, 32)){only}", f"sum({measure} & {HALF - 1}L){only}"]
    return [f"sum({measure}){only}"]


def joined_sql(columns: Sequence[str]) -> str:
    """Both halves together again, as decimal(38,0); 0 of no values."""
    upper, lower = (f"cast({column} AS decimal(27,0))" for column in columns)
    return f"cast(coalesce({upper} * cast({HALF} AS decimal(10,0)) + {lower}, 0) AS decimal(38,0))"


class AverageAlgebra(Algebra):
    kinds = "tt"
    type = DOUBLE

    def __init__(self, measure: TypedExpression) -> None:
        self.sum = SumAlgebra(measure)
        self.error = self.sum.error

    def zero(self) -> tuple[int, Any]:
        return 0, self.sum.zero()

    def add(self, state: tuple[int, Any], value: Any, at: Position) -> tuple[int, Any]:
        return (state[0] + 1, self.sum.add(state[1], value, at)) if is_summable(value) else state

    def merge(self, left: tuple[int, Any], right: tuple[int, Any]) -> tuple[int, Any]:
        return left[0] + right[0], self.sum.merge(left[1], right[1])

    def present(self, state: tuple[int, Any]) -> float | None:
        count, total = state
        if count == 0:
            return None
        return total / count if isinstance(total, float) else float(Fraction(total) / count)

    def to_parts(self, state: tuple[int, Any]) -> tuple[Part, ...]:
        return str(state[0]), *self.sum.to_parts(state[1])

    def from_parts(self, parts: Sequence[Part]) -> tuple[int, Any]:
        return int(parts[0] or 0), self.sum.from_parts(parts[1:])

    def aggregate(self, measure: str, only: str) -> list[str]:
        return [f"count({summable(measure, self.sum.type)}){only}", *self.sum.aggregate(measure, only)]

    def parts(self, columns: Sequence[str]) -> list[str]:
        return [f"cast({columns[0]} AS string)", *self.sum.parts(columns[1:])]

    def column(self, columns: Sequence[str]) -> str:
        return f"try_divide(cast({self.sum.column(columns[1:])} AS double), cast({columns[0]} AS double))"


class ExactVariance(Algebra):
    """Of whole numbers of at most 32 bits: count, sum and sum of squares, all exact."""

    kinds = "ttt"
    type = DOUBLE

    def __init__(self, *, population: bool, root: bool = False) -> None:
        self.population, self.root = population, root

    def zero(self) -> tuple[int, int, int]:
        return 0, 0, 0

    def add(self, state: tuple[int, int, int], value: int, at: Position) -> tuple[int, int, int]:
        return state[0] + 1, state[1] + value, state[2] + value * value

    def merge(self, left: tuple[int, int, int], right: tuple[int, int, int]) -> tuple[int, int, int]:
        return left[0] + right[0], left[1] + right[1], left[2] + right[2]

    def present(self, state: tuple[int, int, int]) -> float | None:
        count, total, squares = state
        return _variance(count, Fraction(squares) - Fraction(total * total, count or 1), self.population, self.root)

    def to_parts(self, state: tuple[int, int, int]) -> tuple[Part, ...]:
        return tuple(map(str, state))

    def from_parts(self, parts: Sequence[Part]) -> tuple[int, int, int]:
        count, total, squares = (int(part or 0) for part in parts)
        return count, total, squares

    def aggregate(self, measure: str, only: str) -> list[str]:
        squares = sum_sql(f"({measure} * {measure})", only, is_split=True)
        return [f"count({measure}){only}", f"sum({measure}){only}", *squares]

    def parts(self, columns: Sequence[str]) -> list[str]:
        return [
            f"cast({columns[0]} AS string)",
            f"cast(coalesce({columns[1]}, 0L) AS string)",
            f"cast({joined_sql(columns[2:])} AS string)",
        ]

    def column(self, columns: Sequence[str]) -> str:
        # count * squares - sum * sum, exactly: as doubles, these two large numbers would leave only their rounding.
        count, total = (f"cast({column} AS decimal(19,0))" for column in columns[:2])
        squares = f"try_multiply({count}, {joined_sql(columns[2:])})"
        spread = f"cast(try_subtract({squares}, try_multiply({total}, {total})) AS double) / {columns[0]}"
        return _variance_sql(columns[0], f"({spread})", self.population, self.root)


class RoundedVariance(Algebra):
    """Of doubles: count, mean and the sum of squared distances from it, merged in the way of Chan."""

    kinds = "ttt"
    type = DOUBLE
    error = ROUNDED

    def __init__(self, *, population: bool, root: bool = False) -> None:
        self.population, self.root = population, root

    def zero(self) -> tuple[int, float, float]:
        return 0, 0.0, 0.0

    def add(self, state: tuple[int, float, float], value: float, at: Position) -> tuple[int, float, float]:
        return self.merge(state, (1, float(value), 0.0)) if is_summable(value) else state

    def merge(self, left: tuple[int, float, float], right: tuple[int, float, float]) -> tuple[int, float, float]:
        if left[0] == 0 or right[0] == 0:
            return right if left[0] == 0 else left
        count, apart = left[0] + right[0], right[1] - left[1]
        mean = (left[1] * left[0] + right[1] * right[0]) / count
        return count, mean, left[2] + right[2] + apart * apart * (left[0] * right[0] / count)

    def present(self, state: tuple[int, float, float]) -> float | None:
        return _variance(state[0], state[2], self.population, self.root)

    def to_parts(self, state: tuple[int, float, float]) -> tuple[Part, ...]:
        return str(state[0]), numbers.to_part(state[1]), numbers.to_part(state[2])

    def from_parts(self, parts: Sequence[Part]) -> tuple[int, float, float]:
        return int(parts[0] or 0), float(parts[1] or 0), float(parts[2] or 0)

    def aggregate(self, measure: str, only: str) -> list[str]:
        value = summable(f"cast({measure} AS double)", DOUBLE)
        return [f"count({value}){only}", f"avg({value}){only}", f"var_pop({value}){only}"]

    def parts(self, columns: Sequence[str]) -> list[str]:
        count, mean, variance = columns
        return [
            f"cast({count} AS string)",
            numbers.part_sql(f"coalesce({mean}, 0D)", DOUBLE),
            numbers.part_sql(f"coalesce({variance} * {count}, 0D)", DOUBLE),
        ]

    def column(self, columns: Sequence[str]) -> str:
        return _variance_sql(columns[0], f"({columns[2]} * {columns[0]})", self.population, self.root)


def _variance(count: int, spread: Fraction | float, population: bool, root: bool) -> float | None:
    below = count if population else count - 1
    if below <= 0:
        return None
    variance = max(float(spread / below), 0.0)
    return sqrt(variance) if root else variance


def _variance_sql(count: str, spread: str, population: bool, root: bool) -> str:
    below = count if population else f"({count} - 1L)"
    variance = f"CASE WHEN {below} > 0L THEN greatest({spread} / {below}, 0D) END"
    return f"sqrt({variance})" if root else variance
