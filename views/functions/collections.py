"""Elements of arrays and maps."""

from __future__ import annotations

from typing import Any

from views.errors import ExpressionError
from views.functions.registry import call, check, constant, field_at, function
from views.typed_expression import TypedExpression
from views.types import BIGINT, BOOLEAN, widened


@function("size", 1)
def _size(value: TypedExpression) -> TypedExpression:
    check("size", value, "array", "map")
    return call(BIGINT, f"if({value.sql} IS NULL, NULL, cast(size({value.sql}) AS bigint))", len, value)


@function("array_contains", 2)
def _array_contains(array: TypedExpression, value: TypedExpression) -> TypedExpression:
    check("array_contains", array, "array")
    element = array.type.element
    if element is None or element.kind in ("array", "map", "struct", "float") or widened(element) != value.type:
        inside = "?" if element is None else element.ddl()
        raise ExpressionError(f"array_contains looks for {value.type.ddl()} in an array of {inside}.")

    def python(among: list[Any], wanted: Any) -> bool | None:
        return True if wanted in [one for one in among if one is not None] else (None if None in among else False)

    return call(BOOLEAN, f"array_contains({array.sql}, {value.sql})", python, array, value)


@function("[]", 2)
def _element(of: TypedExpression, at: TypedExpression) -> TypedExpression:
    check("[]", of, "array", "map")
    if of.type.element is None:
        raise ExpressionError(f"{of.sql} has no elements.")
    if of.type.kind == "map":
        check("a map's key", at, "string")
        sql = f"try_element_at({of.sql}, {at.sql})"
    else:
        index = constant("[]", at, int, "a position from 0")
        if not 0 <= index < 2**31:
            raise ExpressionError(f"[{index}]: a position is 0 or more.")
        sql = f"get({of.sql}, {index})"
    found = call(of.type.element, sql, _value_at if of.type.kind == "map" else _element_at, of, at)
    return field_at(sql, of.type.element, found.evaluate)


def _value_at(of: dict[str, Any], key: str) -> Any:
    return of.get(key)


def _element_at(of: list[Any], index: int) -> Any:
    return of[index] if index < len(of) else None
