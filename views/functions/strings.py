"""Functions of texts. Positions and lengths count characters (Unicode code points), not bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from views.errors import ExpressionError
from views.field_types import FieldType
from views.functions.registry import ANY_NUMBER, call, check, constant, function
from views.like import LIKE, LikePattern
from views.typed_expression import TypedExpression
from views.types import BIGINT, BOOLEAN, STRING, literal


def _of_string(name: str, kind: FieldType, python: Callable[[str], Any]) -> None:
    @function(name, 1)
    def build_it(value: TypedExpression) -> TypedExpression:
        check(name, value, "string")
        sql = f"{name}({value.sql})"
        return call(kind, f"cast({sql} AS bigint)" if kind == BIGINT else sql, python, value)


_of_string("lower", STRING, str.lower)
_of_string("upper", STRING, str.upper)
_of_string("trim", STRING, lambda text: text.strip(" "))
_of_string("length", BIGINT, len)


def _of_two_strings(name: str, python: Callable[[str, str], bool]) -> None:
    @function(name, 2)
    def build_it(text: TypedExpression, part: TypedExpression) -> TypedExpression:
        check(name, text, "string")
        check(name, part, "string")
        return call(BOOLEAN, f"{name}({text.sql}, {part.sql})", python, text, part)


_of_two_strings("startswith", str.startswith)
_of_two_strings("endswith", str.endswith)
_of_two_strings("contains", str.__contains__)


@function("like", 2)
def _like(text: TypedExpression, pattern: TypedExpression) -> TypedExpression:
    check("like", text, "string")
    wanted = LikePattern(constant("like", pattern, str, "a text"))
    return call(BOOLEAN, f"({text.sql}{LIKE}{pattern.sql})", wanted.matches, text)


@function("concat", 1, ANY_NUMBER)
def _concat(*parts: TypedExpression) -> TypedExpression:
    for part in parts:
        check("concat", part, "string")
    if all(part.constant for part in parts):
        value = "".join(part.value for part in parts)
        return TypedExpression(STRING, literal(value), lambda _row: value, constant=True, value=value)
    sql = f"concat({', '.join(part.sql for part in parts)})"
    return call(STRING, sql, lambda *texts: "".join(texts), *parts)


@function("substring", 2, 3)
def _substring(text: TypedExpression, start: TypedExpression, length: TypedExpression | None = None) -> TypedExpression:
    check("substring", text, "string")
    first = constant("substring", start, int, "a position from 1")
    size = 2**31 - 1 if length is None else constant("substring", length, int, "a length")
    if abs(first) >= 2**31 or abs(size) >= 2**31:
        raise ExpressionError("substring: a position or length has at most 31 bits.")

    def python(whole: str) -> str:
        begin = first - 1 if first > 0 else len(whole) + first if first < 0 else 0
        return whole[max(begin, 0) : max(begin + size, 0)]

    return call(STRING, f"substring({text.sql}, {first}, {size})", python, text)


def _end_of_string(name: str, python: Callable[[str, int], str]) -> None:
    @function(name, 2)
    def build_it(text: TypedExpression, length: TypedExpression) -> TypedExpression:
        check(name, text, "string")
        size = constant(name, length, int, "a length from 0")
        if not 0 <= size < 2**31:
            raise ExpressionError(f"{name}: a length is 0 or more, not {size}.")
        return call(STRING, f"{name}({text.sql}, {size})", lambda whole: python(whole, size), text)


_end_of_string("left", lambda text, size: text[:size])
_end_of_string("right", lambda text, size: text[-size:] if size else "")


@function("split_part", 3)
def _split_part(text: TypedExpression, delimiter: TypedExpression, number: TypedExpression) -> TypedExpression:
    check("split_part", text, "string")
    by = constant("split_part", delimiter, str, "a text")
    part = constant("split_part", number, int, "a number from 1, or from -1 for the last")
    if not by or part == 0 or abs(part) >= 2**31:
        raise ExpressionError("split_part takes a delimiter that is not empty, and a number that is not 0.")

    def python(whole: str) -> str:
        parts = whole.split(by)
        at = part - 1 if part > 0 else len(parts) + part
        return parts[at] if 0 <= at < len(parts) else ""

    return call(STRING, f"split_part({text.sql}, {delimiter.sql}, {part})", python, text)


@function("replace", 3)
def _replace(text: TypedExpression, old: TypedExpression, new: TypedExpression) -> TypedExpression:
    for value in (text, old, new):
        check("replace", value, "string")
    sql = f"replace({text.sql}, {old.sql}, {new.sql})"
    return call(STRING, sql, lambda whole, a, b: whole.replace(a, b) if a else whole, text, old, new)
