"""Comparisons, logic and choices, with the three values of SQL: true, false and null."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from views.errors import ExpressionError
from views.functions.registry import ANY_NUMBER, build, call, check, coerce, finite, function, of_bearable_size
from views.typed_expression import Row, TypedExpression
from views.types import BOOLEAN, NULL, common


def _comparison(name: str, python: Callable[[Any, Any], bool]) -> None:
    @function(name, 2)
    def build_it(left: TypedExpression, right: TypedExpression) -> TypedExpression:
        left, right = _alike(f"{left.sql} {name} {right.sql}", left, right)
        return call(BOOLEAN, f"({left.sql} {name} {right.sql})", python, left, right)


def _alike(where: str, *values: TypedExpression) -> list[TypedExpression]:
    kind = common([value.type for value in values], where)
    if kind.kind in ("array", "map", "struct"):
        raise ExpressionError(f"{where} compares {kind.ddl()}; compare parts of it.")
    return [coerce(value, kind if kind != NULL else BOOLEAN) for value in values]


_comparison("=", lambda a, b: a == b)
_comparison("<>", lambda a, b: a != b)
_comparison("<", lambda a, b: a < b)
_comparison("<=", lambda a, b: a <= b)
_comparison(">", lambda a, b: a > b)
_comparison(">=", lambda a, b: a >= b)


@function("<=>", 2)
def _null_safe(left: TypedExpression, right: TypedExpression) -> TypedExpression:
    left, right = _alike(f"{left.sql} <=> {right.sql}", left, right)
    return TypedExpression(
        BOOLEAN, f"({left.sql} <=> {right.sql})", lambda row: left.evaluate(row) == right.evaluate(row)
    )


@function("between", 3)
def _between(value: TypedExpression, low: TypedExpression, high: TypedExpression) -> TypedExpression:
    return build("and", [build(">=", [value, low]), build("<=", [value, high])])


@function("in", 2, ANY_NUMBER)
def _in(value: TypedExpression, *options: TypedExpression) -> TypedExpression:
    value, *among_these = _alike(f"{value.sql} in", value, *options)

    def evaluate(row: Row) -> bool | None:
        found, among = value.evaluate(row), [option.evaluate(row) for option in among_these]
        if found is None:
            return None
        return True if found in [one for one in among if one is not None] else (None if None in among else False)

    return TypedExpression(BOOLEAN, f"({value.sql} IN ({', '.join(option.sql for option in among_these)}))", evaluate)


@function("is", 2)
def _is(value: TypedExpression, what: TypedExpression) -> TypedExpression:
    if not what.constant or what.value not in (None, True, False):
        raise ExpressionError(f"is takes null, true or false, not {what.sql}.")
    if what.value is None:
        return TypedExpression(BOOLEAN, f"({value.sql} IS NULL)", lambda row: value.evaluate(row) is None)
    check("is", value, "boolean")
    return TypedExpression(
        BOOLEAN, f"({value.sql} IS {what.sql.upper()})", lambda row: value.evaluate(row) is what.value
    )


@function("and", 2)
def _and(left: TypedExpression, right: TypedExpression) -> TypedExpression:
    return _logic("and", left, right, decides=False)


@function("or", 2)
def _or(left: TypedExpression, right: TypedExpression) -> TypedExpression:
    return _logic("or", left, right, decides=True)


def _logic(name: str, left: TypedExpression, right: TypedExpression, *, decides: bool) -> TypedExpression:
    """One operand that `decides` is enough, whatever the other; else null where one is null."""
    left, right = (coerce(value, BOOLEAN) if value.type == NULL else value for value in (left, right))
    for value in (left, right):
        check(name, value, "boolean")

    def evaluate(row: Row) -> bool | None:
        values = (left.evaluate(row), right.evaluate(row))
        if decides in values:
            return decides
        return None if None in values else not decides

    return TypedExpression(BOOLEAN, f"({left.sql} {name.upper()} {right.sql})", evaluate)


@function("not", 1)
def _not(value: TypedExpression) -> TypedExpression:
    check("not", value, "boolean")
    return call(BOOLEAN, f"(NOT {value.sql})", lambda a: not a, value)


@function("if", 2, 3)
def _if(
    condition: TypedExpression, value: TypedExpression, otherwise: TypedExpression | None = None
) -> TypedExpression:
    return case([(condition, value)], otherwise or TypedExpression(NULL, "NULL", lambda _row: None))


@function("coalesce", 1, ANY_NUMBER)
def _coalesce(*values: TypedExpression) -> TypedExpression:
    alike = _alike("coalesce", *values)

    def evaluate(row: Row) -> Any:
        return next((found for value in alike if (found := value.evaluate(row)) is not None), None)

    return TypedExpression(alike[0].type, f"coalesce({', '.join(value.sql for value in alike)})", evaluate)


@function("nullif", 2)
def _nullif(value: TypedExpression, unwanted: TypedExpression) -> TypedExpression:
    return case([(build("=", [value, unwanted]), TypedExpression(NULL, "NULL", lambda _row: None))], value)


def _extreme(name: str, python: Callable[[list[Any]], Any]) -> None:
    @function(name, 2, ANY_NUMBER)
    def build_it(*values: TypedExpression) -> TypedExpression:
        alike = _alike(name, *values)

        def evaluate(row: Row) -> Any:
            found = [one for value in alike if (one := value.evaluate(row)) is not None]
            return python(found) if found else None

        return TypedExpression(alike[0].type, f"{name}({', '.join(value.sql for value in alike)})", evaluate)


_extreme("greatest", max)
_extreme("least", min)


def case(branches: Sequence[tuple[TypedExpression, TypedExpression]], default: TypedExpression) -> TypedExpression:
    """The value of the first branch whose condition is true, else the default."""
    conditions = [finite(condition) for condition, _ in branches]
    for condition in conditions:
        check("case when", condition, "boolean")
    values = [finite(value) for _, value in branches]
    default = finite(default)
    kind = common([*(value.type for value in values), default.type], "case")
    if kind == NULL:
        raise ExpressionError("every branch of case is null.")
    values, default = [coerce(value, kind) for value in values], coerce(default, kind)
    whens = " ".join(f"WHEN {c.sql} THEN {v.sql}" for c, v in zip(conditions, values, strict=True))

    def evaluate(row: Row) -> Any:
        for condition, value in zip(conditions, values, strict=True):
            if condition.evaluate(row):
                return value.evaluate(row)
        return default.evaluate(row)

    return of_bearable_size("case", TypedExpression(kind, f"CASE {whens} ELSE {default.sql} END", evaluate))
