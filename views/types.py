"""The types of values inside expressions: fewer than fields have, so that every rule fits on a page.

Whole numbers are 64 bits wide and floats are doubles, whatever their field: `bytes * 8` of an int field cannot wrap.
What cannot be computed (a division by zero, a result too large, a cast that fails) is null, never an error: one strange
event must not stop the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal
from functools import reduce
from typing import Any

from views.errors import ExpressionError
from views.field_types import INTEGER_BITS, MAX_PRECISION, FieldType

BIGINT, DOUBLE, STRING, BOOLEAN, DATE, TIMESTAMP, NULL = map(
    FieldType, ("bigint", "double", "string", "boolean", "date", "timestamp", "null")
)
BIGINT_AS_DECIMAL = FieldType("decimal", precision=20)
"""What Spark makes of a bigint beside a decimal."""
SMALLEST, LARGEST = -(2**63), 2**63 - 1
EXACT = Context(prec=120)
"""Wide enough that no sum, product or cast of two decimals of 38 digits is rounded."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def widened(field: FieldType) -> FieldType:
    """The type that a field has inside expressions: int -> bigint, float -> double."""
    if field.kind in INTEGER_BITS:
        return BIGINT
    return DOUBLE if field.kind == "float" else field


def is_number(kind: FieldType) -> bool:
    """Whether one can compute with it."""
    return kind.kind in ("bigint", "double", "decimal", "null")


def common(kinds: Sequence[FieldType], where: str) -> FieldType:
    """The one type that the branches of `where` (a case, a coalesce, a comparison) have together."""
    return reduce(lambda left, right: _common_of_two(left, right, where), kinds, NULL)


def _common_of_two(left: FieldType, right: FieldType, where: str) -> FieldType:
    if left == right or right == NULL:
        return left
    if left == NULL:
        return right
    if is_number(left) and is_number(right):
        if DOUBLE in (left, right):
            return DOUBLE
        left, right = as_decimal(left), as_decimal(right)
        scale = max(left.scale, right.scale)
        return decimal(max(left.precision - left.scale, right.precision - right.scale) + scale, scale, where)
    raise ExpressionError(
        f"{where} combines {left.ddl()} and {right.ddl()}. Make them one type with cast(… as {left.ddl()})."
    )


def as_decimal(kind: FieldType) -> FieldType:
    """A bigint, or null beside a decimal, as a decimal; a decimal as it is."""
    return kind if kind.kind == "decimal" else BIGINT_AS_DECIMAL


def decimal(precision: int, scale: int, where: str) -> FieldType:
    """A decimal, refused where Spark would begin to round."""
    if precision > MAX_PRECISION:
        raise ExpressionError(
            f"{where} needs a decimal of {precision} digits; there are {MAX_PRECISION}. "
            "Cast an operand to fewer digits, for example cast(… as decimal(18,2)), or to double."
        )
    return FieldType("decimal", precision=precision, scale=scale)


def literal(value: Any) -> str:
    r"""A Python value -> how Spark SQL writes it: `it's` -> `'it\'s'`."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case int():
            return f"{value}L" if value > SMALLEST else f"(-{LARGEST}L - 1L)"
        case float():
            return f"{value!r}D"
        case Decimal():
            return f"{value:f}BD"
        case str():
            # Spark puts a setting where it sees ${its.name}, in texts too.
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024") + "'"
        case datetime():
            return f"timestamp_micros({(value - EPOCH) // MICROSECOND}L)"
        case date():
            return f"DATE '{value.isoformat()}'"
    raise ExpressionError(f"{value!r} cannot be written as a constant.")


def fit(value: int | None) -> int | None:
    """The value if 64 bits hold it, else null."""
    return value if value is not None and SMALLEST <= value <= LARGEST else None


def fit_decimal(value: Decimal, kind: FieldType) -> Decimal | None:
    """The value with the type's scale, half rounded up; null where it has too many digits."""
    if value.adjusted() > MAX_PRECISION:  # too large for `quantize` too
        return None
    scaled = value.quantize(Decimal(1).scaleb(-kind.scale), rounding=ROUND_HALF_UP, context=EXACT)
    return one_zero(scaled) if EXACT.abs(scaled) < Decimal(10) ** (kind.precision - kind.scale) else None


def one_zero(value: Decimal) -> Decimal:
    """The value, -0.00 as 0.00: Spark's decimals have one zero."""
    return value or value.copy_abs()


# ---- casts -------------------------------------------------------------------

CASTS = {
    "bigint": ("bigint", "double", "decimal", "string"),
    "double": ("double", "bigint", "decimal"),
    "decimal": ("decimal", "double", "bigint"),
    "string": ("string", "bigint"),
    "boolean": ("boolean", "string", "bigint"),
    "date": ("date", "string"),
    "timestamp": ("timestamp", "date"),
    "null": ("bigint", "double", "decimal", "string", "boolean", "date", "timestamp"),
}
"""From -> to. Others exist in Spark, but say different things in different settings, or round."""


def check_cast(kind: FieldType, to: FieldType) -> None:
    """Refuse a cast that is not among CASTS."""
    if to.kind not in CASTS.get(kind.kind, ()):
        there_are = ", ".join(CASTS.get(kind.kind, ())) or "none"
        raise ExpressionError(f"cast from {kind.ddl()} to {to.ddl()} is not supported; casts to: {there_are}.")


def cast(value: Any, to: FieldType) -> Any:
    """A value as another type, or None where that cannot be: what Spark's try_cast gives."""
    if value is None:
        return None
    match to.kind:
        case "bigint":
            return _to_bigint(value)
        case "double":
            return float(value)
        case "decimal":
            return fit_decimal(Decimal(repr(value)) if isinstance(value, float) else Decimal(value), to)
        case "string":
            return str(value).lower() if isinstance(value, bool) else str(value)
        case "date" if isinstance(value, datetime):
            return value.astimezone(UTC).date()
    return value


def _to_bigint(value: Any) -> int | None:
    if isinstance(value, str):
        text = value.strip(WHITE)
        digits = text[1:] if text[:1] in ("+", "-") else text
        return fit(int(text)) if digits.isascii() and digits.isdecimal() else None
    if isinstance(value, Decimal):
        return fit(int(value.to_integral_value(rounding=ROUND_DOWN, context=EXACT)))
    # As a double the largest whole number is 2^63, which Spark takes for it.
    return LARGEST if value == float(LARGEST) and isinstance(value, float) else fit(int(value))


WHITE = "".join(map(chr, [*range(0x21), 0x7F]))
"""What Spark trims before it reads a number: spaces and control characters."""
