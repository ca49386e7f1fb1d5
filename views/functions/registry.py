"""What every function is made with: the table of builders, checks of arguments, casts and paths to fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from views.errors import ExpressionError
from views.field_types import INTEGER_BITS, Field, FieldType
from views.typed_expression import Row, TypedExpression
from views.types import DOUBLE, NULL, cast, check_cast, widened

Builder = Callable[..., TypedExpression]
BUILDERS: dict[str, tuple[Builder, int, int]] = {}
"""name -> how it is built, and how many arguments it takes at least and at most."""
ANY_NUMBER = 100
TAKE_INFINITY = ("+", "-", "*", "/", "negative", "abs")
"""What is given infinity gives infinity or NaN, which the next other function makes null: one test for a whole sum."""
LONGEST_SQL = 100_000


def build(name: str, arguments: Sequence[TypedExpression]) -> TypedExpression:
    """The call of a function or operator, with its types checked."""
    builder, least, most = BUILDERS[name]
    if not least <= len(arguments) <= most:
        plural = "" if most == 1 else "s"
        wanted = f"{least if least == most else f'{least} to {most}'} argument{plural}"
        raise ExpressionError(f"{name} takes {wanted}, not {len(arguments)}.")
    return of_bearable_size(name, builder(*(arguments if name in TAKE_INFINITY else map(finite, arguments))))


def of_bearable_size(name: str, value: TypedExpression) -> TypedExpression:
    """The value. Some functions need an argument twice in their SQL, so nesting them can make it grow exponentially."""
    if len(value.sql) > LONGEST_SQL:
        raise ExpressionError(
            f"{name} is nested too often: its Spark SQL has {len(value.sql)} characters. Simplify it."
        )
    return value


def finite(value: TypedExpression) -> TypedExpression:
    """The value, with NaN and infinities made null: no rule about them then needs to be remembered."""
    if value.is_finite or value.type != DOUBLE:
        return value
    sql = f"CASE WHEN abs({value.sql}) < double('Infinity') THEN {value.sql} END"
    inner = value.evaluate

    def evaluate(row: Row) -> float | None:
        found = inner(row)
        return found if found is not None and math.isfinite(found) else None

    return TypedExpression(DOUBLE, sql, evaluate)


def coerce(value: TypedExpression, kind: FieldType) -> TypedExpression:
    """The value as another type, where no digit is lost but those a double lacks."""
    if value.type == kind or value.type == NULL:
        return value if value.type == kind else TypedExpression(kind, f"cast(NULL AS {kind.ddl()})", lambda _row: None)
    return call(kind, f"try_cast({value.sql} AS {kind.ddl()})", lambda one: cast(one, kind), value)


def cast_to(value: TypedExpression, to: FieldType) -> TypedExpression:
    """`cast(x as decimal(10,2))`: null where the value does not fit."""
    value = finite(value)
    check_cast(value.type, to)
    return coerce(value, to)


def member(of: TypedExpression, field: Field) -> TypedExpression:
    """The field of a struct: `properties`.`url`."""
    inner, name = of.evaluate, field.name

    def evaluate(row: Row) -> Any:
        struct = inner(row)
        return None if struct is None else struct.get(name)

    return field_at(f"{of.sql}.`{name}`", field.type, evaluate)


def field_at(path: str, kind: FieldType, evaluate: Callable[[Row], Any]) -> TypedExpression:
    """A field that Spark reaches by `path`, in the type that it has inside expressions."""
    wide = widened(kind)
    sql = path if wide == kind else f"cast({path} AS {wide.ddl()})"
    return TypedExpression(wide, sql, evaluate, is_small=kind.kind in INTEGER_BITS and kind.kind != "bigint")


def function(name: str, least: int, most: int | None = None) -> Callable[[Builder], Builder]:
    """Register how a function is built, with its least and most number of arguments (the same if one is given)."""

    def register(builder: Builder) -> Builder:
        BUILDERS[name] = (builder, least, least if most is None else most)
        return builder

    return register


def call(
    kind: FieldType, sql: str, python: Callable[..., Any], *arguments: TypedExpression, is_finite: bool = True
) -> TypedExpression:
    """A function that is null where any argument is."""
    evaluators = [argument.evaluate for argument in arguments]

    def evaluate(row: Row) -> Any:
        values = [each(row) for each in evaluators]
        return None if any(value is None for value in values) else python(*values)

    return TypedExpression(kind, sql, evaluate, is_finite=is_finite)


def check(name: str, value: TypedExpression, *kinds: str) -> None:
    """Refuse an argument of another type."""
    if value.type.kind not in kinds:
        raise ExpressionError(f"{name} takes {' or '.join(kinds)}, not {value.type.ddl()} ({value.sql}).")


def constant(name: str, value: TypedExpression, kind: type, what: str) -> Any:
    """The argument's value, which has to be written out in the expression."""
    if not value.constant or type(value.value) is not kind:
        raise ExpressionError(f"{name}: {value.sql} should be {what}, written out.")
    return value.value
