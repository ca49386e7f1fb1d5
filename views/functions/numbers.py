"""Arithmetic and rounding. Whole numbers are 64 bits wide; what does not fit is null."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from views.errors import ExpressionError
from views.field_types import FieldType
from views.functions.registry import call, check, coerce, constant, finite, function
from views.typed_expression import TypedExpression
from views.types import BIGINT, DOUBLE, EXACT, LARGEST, SMALLEST, as_decimal, decimal, fit, is_number, one_zero

MAX_DIGITS = 34


def _arithmetic(name: str, try_name: str, python: Callable[[Any, Any], Any]) -> None:
    @function(name, 2)
    def build_it(left: TypedExpression, right: TypedExpression) -> TypedExpression:
        for value in (left, right):
            if not is_number(value.type):
                raise ExpressionError(f"{name} takes numbers, not {value.type.ddl()} ({value.sql}).")
        kind = _result(name, left.type, right.type)
        if kind == DOUBLE:
            left, right = coerce(left, DOUBLE), coerce(right, DOUBLE)
            return call(DOUBLE, f"({left.sql} {name} {right.sql})", python, left, right, is_finite=False)
        if kind == BIGINT:
            left, right = coerce(left, BIGINT), coerce(right, BIGINT)
            return call(BIGINT, f"{try_name}({left.sql}, {right.sql})", lambda a, b: fit(python(a, b)), left, right)
        exact = getattr(EXACT, {"+": "add", "-": "subtract", "*": "multiply"}[name])
        left, right = coerce(left, as_decimal(left.type)), coerce(right, as_decimal(right.type))
        return call(kind, f"({left.sql} {name} {right.sql})", lambda a, b: one_zero(exact(a, b)), left, right)


def _result(name: str, left: FieldType, right: FieldType) -> FieldType:
    if DOUBLE in (left, right):
        return DOUBLE
    if "decimal" not in (left.kind, right.kind):
        return BIGINT
    left, right = as_decimal(left), as_decimal(right)
    if name == "*":
        return decimal(left.precision + right.precision + 1, left.scale + right.scale, "a product")
    scale = max(left.scale, right.scale)
    return decimal(max(left.precision - left.scale, right.precision - right.scale) + scale + 1, scale, "a sum")


_arithmetic("+", "try_add", lambda a, b: a + b)
_arithmetic("-", "try_subtract", lambda a, b: a - b)
_arithmetic("*", "try_multiply", lambda a, b: a * b)


@function("/", 2)
def _divide(left: TypedExpression, right: TypedExpression) -> TypedExpression:
    for value in (left, right):
        if value.type.kind == "decimal" and not value.constant:
            raise ExpressionError(
                f"a division of decimals would be rounded; say how: cast({value.sql} as double) / …, "
                "or divide the answers with Ratio."
            )
        check("/", value, "bigint", "double", "decimal")
    left, right = coerce(left, DOUBLE), finite(coerce(right, DOUBLE))  # x / infinity would be 0
    sql = f"try_divide({left.sql}, {right.sql})"
    return call(DOUBLE, sql, lambda a, b: a / b if b else None, left, right, is_finite=False)


@function("%", 2)
def _remainder(left: TypedExpression, right: TypedExpression) -> TypedExpression:
    for value in (left, right):
        check("%", value, "bigint")

    def python(a: int, b: int) -> int | None:
        return None if b == 0 else (abs(a) % abs(b)) * (-1 if a < 0 else 1)

    return call(BIGINT, f"try_mod({left.sql}, {right.sql})", python, left, right)


@function("negative", 1)
def _negative(value: TypedExpression) -> TypedExpression:
    # The space in the SQL: of -(-1.5) two signs in a row would be left, and begin a comment.
    check("-", value, "bigint", "double", "decimal")
    if value.type == BIGINT:
        return call(BIGINT, f"try_subtract(0L, {value.sql})", lambda a: fit(-a), value)
    if value.type == DOUBLE:
        return call(DOUBLE, f"(- {value.sql})", lambda a: -a, value, is_finite=value.is_finite)
    _check_digits("-", value)
    return call(value.type, f"(- {value.sql})", lambda a: one_zero(EXACT.minus(a)), value)


@function("abs", 1)
def _abs(value: TypedExpression) -> TypedExpression:
    check("abs", value, "bigint", "double", "decimal")
    if value.type == BIGINT:
        sql = f"if({value.sql} < 0L, try_subtract(0L, {value.sql}), {value.sql})"
        return call(BIGINT, sql, lambda a: fit(abs(a)), value)
    if value.type == DOUBLE:
        return call(DOUBLE, f"abs({value.sql})", abs, value, is_finite=value.is_finite)
    _check_digits("abs", value)
    return call(value.type, f"abs({value.sql})", EXACT.abs, value)


def _check_digits(name: str, value: TypedExpression) -> None:
    """Refuse decimals that Spark would round: it changes a sign with 34 digits."""
    if value.type.precision > MAX_DIGITS:
        raise ExpressionError(
            f"{name} of {value.type.ddl()} would be rounded to {MAX_DIGITS} digits. "
            f"Cast it: cast(… as decimal({MAX_DIGITS},{min(value.type.scale, MAX_DIGITS)}))."
        )


def _whole(name: str, python: Callable[[float], int]) -> None:
    @function(name, 1)
    def build_it(value: TypedExpression) -> TypedExpression:
        check(name, value, "bigint", "double")
        if value.type == BIGINT:
            return value
        return call(BIGINT, f"{name}({value.sql})", lambda a: min(max(python(a), SMALLEST), LARGEST), value)


_whole("floor", math.floor)
_whole("ceil", math.ceil)


@function("round", 1, 2)
def _round(value: TypedExpression, digits: TypedExpression | None = None) -> TypedExpression:
    check("round", value, "bigint", "double")
    places = 0 if digits is None else constant("round", digits, int, "a number of digits from 0 to 15")
    if not 0 <= places <= 15:
        raise ExpressionError(f"round to {places} digits: 0 to 15 are possible.")
    if value.type == BIGINT:
        return value
    step = Decimal(1).scaleb(-places)

    def python(number: float) -> float:
        return float(Decimal(repr(number)).quantize(step, rounding=ROUND_HALF_UP, context=BIG))

    return call(DOUBLE, f"round({value.sql}, {places})", python, value)


BIG = EXACT.copy()
BIG.prec = 400  # a double has up to 309 digits before the point


@function("sqrt", 1)
def _sqrt(value: TypedExpression) -> TypedExpression:
    check("sqrt", value, "bigint", "double")
    value = coerce(value, DOUBLE)
    sql = f"CASE WHEN {value.sql} >= 0D THEN sqrt({value.sql}) END"
    return call(DOUBLE, sql, lambda a: math.sqrt(a) if a >= 0 else None, value)
