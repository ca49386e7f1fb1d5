"""Expressions: the part of Spark SQL that a view may use, checked and typed when it is declared.

An expression is parsed once and translated twice: to Spark SQL for the batch and speed layers, and to a Python function
for the reference interpreter. Both come from the same tree, and tests compare them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from sqlglot import exp

from views import functions
from views.errors import DeclarationError, ExpressionError
from views.field_types import MAX_PRECISION, FieldType, parse_fields
from views.syntax import call, check_nothing_lost, taken, tree
from views.typed_expression import TypedExpression
from views.types import BIGINT, BOOLEAN, DATE, DOUBLE, NULL, STRING, TIMESTAMP, fit, literal, widened

LONGEST, DEEPEST = 10_000, 100
"""Characters of an expression, and how deep it may be nested."""
TOO_DEEP = f"it is nested more than {DEEPEST} deep. Make it shorter, for example with in (…) for many or."
UNITS = ("SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR")


@dataclass(frozen=True)
class Scope:
    """What names mean in an expression: name -> (type, how Spark reaches it, how Python does)."""

    fields: Mapping[str, TypedExpression]
    noun: str = "field"
    used: set[tuple[str, ...]] = field(default_factory=set, compare=False)
    """The paths that were used, in lower case."""

    def find(self, path: list[str]) -> TypedExpression:
        """The field at a path, its names compared without regard to case, as Spark does."""
        names = {name.lower(): name for name in self.fields}
        if path[0].lower() not in names:
            raise ExpressionError(_unknown(self.noun, path[0], sorted(self.fields)))
        found = self.fields[names[path[0].lower()]]
        for place, name in enumerate(path[1:], 2):
            found = _member(found, name, ".".join(path[:place]))
        self.used.add(tuple(name.lower() for name in path))
        return found


def _member(of: TypedExpression, name: str, path: str) -> TypedExpression:
    """The field of a struct, its name compared as Spark does; `path` is for the error."""
    inner = {each.name.lower(): each for each in of.type.fields}
    if name.lower() not in inner:
        raise ExpressionError(_unknown("field", path, [each.name for each in of.type.fields]))
    return functions.member(of, inner[name.lower()])


def _unknown(noun: str, name: str, known: list[str]) -> str:
    close = get_close_matches(name.split(".")[-1].lower(), known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"there is no {noun} {name!r}.{hint} There are: {', '.join(known) or 'none inside it'}."


def parse(text: str, scope: Scope) -> TypedExpression:
    """`lower(properties.url)` -> its type, its Spark SQL and its Python function; ExpressionError if that cannot be."""
    given: object = text
    if not isinstance(given, str) or not given.strip():
        raise ExpressionError(f"{given!r} is not an expression. Write Spark SQL, for example 'lower(url)'.")
    if len(text) > LONGEST:
        raise ExpressionError(f"{text[:40] + '…'!r} has {len(text)} characters; an expression has at most {LONGEST}.")
    try:
        read = tree(text)
        found = _build(read, scope, 0)
        check_nothing_lost(text, read)
    except DeclarationError as error:
        raise ExpressionError(f"{text!r}: {error}") from None
    except RecursionError:  # sqlglot's; ours ends at DEEPEST
        raise ExpressionError(f"{text!r}: {TOO_DEEP}") from None
    if found.type.kind in ("array", "map", "struct", "null"):
        raise ExpressionError(f"{text!r}: its value is of type {found.type.ddl()}; take one part of it.")
    return found


def parse_condition(text: str, scope: Scope) -> TypedExpression:
    """The same for a `where`, which is true or not; null is not."""
    found = parse(text, scope)
    if found.type != BOOLEAN:
        raise ExpressionError(f"{text!r} is {found.type.ddl()}; a condition is boolean, for example 'status >= 500'.")
    return found


def _build(node: Any, scope: Scope, depth: int) -> TypedExpression:
    if depth > DEEPEST:
        raise ExpressionError(TOO_DEEP)
    inner = depth + 1
    match node:
        case None:
            raise ExpressionError("a function lacks an argument. Write it between the parentheses.")
        case exp.Paren():
            return _build(taken(node, "this")[0], scope, inner)
        case exp.Column():
            taken(node, "this", "table", "db", "catalog")
            return scope.find(_path(node))
        case exp.Dot():
            return _dot(node, scope, inner)
        case exp.Literal() | exp.Boolean() | exp.Null():
            return _constant(_literal_value(node))
        case exp.Neg() if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return _constant(_literal_value(node.this, "-"))
        case exp.Cast():
            value, kind = taken(node, "this", "to")
            if _is_time_constant(value, kind):
                return _constant(_time_value(value.name, _cast_type(kind)))
            return functions.cast_to(_build(value, scope, inner), _cast_type(kind))
        case exp.Is():
            return functions.build("is", [_build(each, scope, inner) for each in taken(node, "this", "expression")])
        case exp.Case():
            return _case(node, scope, inner)
        case exp.TimestampTrunc():
            value, unit = taken(node, "this", "unit")
            return functions.truncated(_build(value, scope, inner), unit.name.upper(), UNITS)
    if isinstance(node, exp.AggFunc | exp.Window):
        raise ExpressionError(
            f"{node.sql('spark')!r} aggregates; an expression depends on one event. Declare it as an answer, for "
            "example Sum('ms'), and combine answers with Derived or Ratio."
        )
    name, arguments = call(node)
    built = functions.build(name, [_build(argument, scope, inner) for argument in arguments])
    return functions.build("not", [built]) if node.args.get("negate") else built


def _case(node: exp.Case, scope: Scope, depth: int) -> TypedExpression:
    """`case when a then b else c end`, and `case x when a then b end`, which is the same with x = a."""
    of, ifs, default = taken(node, "this", "ifs", "default")
    subject = _build(of, scope, depth) if of is not None else None
    branches: list[tuple[TypedExpression, TypedExpression]] = []
    for each in ifs:
        when, then = taken(each, "this", "true")
        condition = _build(when, scope, depth)
        if subject is not None:
            condition = functions.build("=", [subject, condition])
        branches.append((condition, _build(then, scope, depth)))
    return functions.case(branches, _build(default, scope, depth) if default is not None else _constant(None))


def _dot(node: exp.Dot, scope: Scope, depth: int) -> TypedExpression:
    """`a.b.c.d.e`, which sqlglot makes of a column and dots, or `track[0].at`."""
    of, name = taken(node, "this", "expression")
    if not isinstance(name, exp.Identifier):
        raise ExpressionError(f"{node.sql('spark')!r} is not a path to a field. Write names and dots.")
    if isinstance(of, exp.Column | exp.Dot | exp.Identifier) and not node.find(exp.Bracket):
        return scope.find(_path(node))
    return _member(_build(of, scope, depth), name.name, node.sql("spark"))


def _path(node: exp.Expression) -> list[str]:
    """`properties.url`, however sqlglot splits it into table, column and dots."""
    if isinstance(node, exp.Dot):
        return [*_path(node.this), node.expression.name]
    if isinstance(node, exp.Column):
        if isinstance(node.this, exp.Star):
            raise ExpressionError("'*' is not allowed here; name a field.")
        return [part.name for part in node.parts]
    if isinstance(node, exp.Identifier):
        return [node.name]
    raise ExpressionError(f"{node.sql('spark')!r} is not a path to a field. Write names and dots.")


def _constant(value: Any) -> TypedExpression:
    kind = _kind_of(value)
    return TypedExpression(kind, literal(value), lambda _row: value, constant=True, value=value)


def _kind_of(value: Any) -> FieldType:
    match value:
        case None:
            return NULL
        case bool():
            return BOOLEAN
        case int():
            return BIGINT
        case float():
            return DOUBLE
        case str():
            return STRING
        case datetime():
            return TIMESTAMP
        case date():
            return DATE
    digits, exponent = value.as_tuple().digits, -value.as_tuple().exponent
    precision = max(len(digits), exponent, 1)
    if precision > MAX_PRECISION:
        raise ExpressionError(f"{value} has {precision} digits; a decimal has at most {MAX_PRECISION}.")
    return FieldType("decimal", precision=precision, scale=max(exponent, 0))


def _literal_value(node: exp.Expression, sign: str = "") -> Any:
    if isinstance(node, exp.Null):
        return None
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if node.is_string:
        return node.name
    text = sign + node.name.lower()
    try:
        if "e" in text:
            return _finite(float(text), text)
        return Decimal(text) if "." in text else _whole(int(text))
    except (ValueError, ArithmeticError):
        raise ExpressionError(f"{text} is not a number.") from None


def _finite(value: float, text: str) -> float:
    if not math.isfinite(value):
        raise ExpressionError(f"{text} is larger than a double holds.")
    return value


def _whole(value: int) -> int:
    if fit(value) is None:
        raise ExpressionError(f"{value} is larger than 64 bits hold. Write it with a point, as a decimal: {value}.0.")
    return value


def _is_time_constant(value: exp.Expression, kind: exp.Expression) -> bool:
    """`timestamp '2026-01-01'` and `date '2026-01-01'`."""
    return isinstance(value, exp.Literal) and value.is_string and _cast_type(kind) in (TIMESTAMP, DATE)


def _time_value(text: str, kind: FieldType) -> date | datetime:
    try:
        if kind == DATE:
            return date.fromisoformat(text)
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ExpressionError(
            f"{text!r} is not a time. Write timestamp '2026-01-31T12:00:00Z' or date '2026-01-31'."
        ) from None


def _cast_type(node: exp.Expression) -> FieldType:
    (field,) = parse_fields(f"x {node.sql('spark')}")
    return widened(field.type)
