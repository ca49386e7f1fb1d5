"""The types that an event's fields may have, read from Spark DDL without a JVM."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from views.constants import INTEGER_BITS as INTEGER_BITS
from views.constants import MAX_PRECISION as MAX_PRECISION
from views.constants import constant_of
from views.errors import DeclarationError

SCALARS = {
    "STRING": "string",
    "TEXT": "string",
    "VARCHAR": "string",
    "BOOLEAN": "boolean",
    "TINYINT": "tinyint",
    "SMALLINT": "smallint",
    "INT": "int",
    "BIGINT": "bigint",
    "FLOAT": "float",
    "DOUBLE": "double",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMPTZ": "timestamp",
}
"""What sqlglot calls a type of Spark's, and what Spark calls it."""

UNUSABLE_IN_NAMES = " ,;{}()\n\t=.`"
"""A dot and a backtick would break the paths to a field; Delta takes no column whose name has one of the others."""
RESERVED_NAMES = ("_corrupt",)
"""Where Spark's JSON reader puts what it could not read."""


@dataclass(frozen=True)
class FieldType:
    """A type: `kind` is a scalar's name, or decimal, array, map or struct with what belongs to it."""

    kind: str
    precision: int = 0  # decimal
    scale: int = 0  # decimal
    element: FieldType | None = None  # of an array; the values of a map
    fields: tuple[Field, ...] = ()  # of a struct

    def ddl(self) -> str:
        """As Spark writes it: `struct<url:string,ms:int>`."""
        match self.kind:
            case "decimal":
                return f"decimal({self.precision},{self.scale})"
            case "array" if self.element:
                return f"array<{self.element.ddl()}>"
            case "map" if self.element:
                return f"map<string,{self.element.ddl()}>"
            case "struct":
                return f"struct<{','.join(f'`{field.name}`:{field.type.ddl()}' for field in self.fields)}>"
        return self.kind


@dataclass(frozen=True)
class Field:
    """A named field of an event or of a struct, and how it is read. That is no part of its type: it is not compared."""

    name: str
    type: FieldType
    is_required: bool = field(default=False, compare=False)
    """Whether a record without a value of it is invalid."""
    default: Any = field(default=None, compare=False)
    """Its value where it is absent, as Python has values of its type; None: there is none."""
    aliases: tuple[str, ...] = field(default=(), compare=False)
    """Other names under which it may come."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names under which it may come; its own first."""
        return self.name, *self.aliases


_QUOTED = r"'(?:[^'\\]|\\.)*'"
_DEFAULT = re.compile(
    rf"""(?P<other>{_QUOTED}|`[^`]*`|"[^"]*")
    |\bdefault\s+(?P<constant>-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|true|false|{_QUOTED})
     (?=\s*(?:[,)>]|$|not\s|comment\s))""",
    re.DOTALL | re.IGNORECASE | re.VERBOSE,
)
_MARKER = "\0default "


def _without_defaults(ddl: str) -> tuple[str, list[str]]:
    """The DDL with comments that number its defaults, and these. Inside `struct<…>` the parser would read `1>` on."""
    constants: list[str] = []

    def numbered(found: re.Match[str]) -> str:
        if found["other"]:
            return found["other"]
        constants.append(found["constant"])
        return f"COMMENT '{_MARKER}{len(constants) - 1}'"

    return _DEFAULT.sub(numbered, ddl), constants


def parse_fields(ddl: str) -> tuple[Field, ...]:
    """`url string, ms int` -> its fields. Raises DeclarationError with the field, or the text that is not DDL."""
    numbered, constants = _without_defaults(ddl)
    try:
        table = sqlglot.parse_one(f"CREATE TABLE t ({numbered})", dialect="spark")
        defaults = [sqlglot.parse_one(constant, dialect="spark") for constant in constants]
    except SqlglotError as error:
        raise DeclarationError(f"{ddl!r} is not Spark DDL like 'url string, ms int': {_first_line(error)}") from None
    columns = list(table.this.expressions) if isinstance(table.this, exp.Schema) else []
    if not columns or table.args.get("properties") or not all(map(_is_field, columns)):
        raise DeclarationError(f"{ddl!r} is not Spark DDL like 'url string, ms int'.")
    for comment in table.find_all(exp.CommentColumnConstraint):
        text = comment.this.name
        if text.startswith(_MARKER):
            comment.replace(exp.DefaultColumnConstraint(this=defaults[int(text[len(_MARKER) :])]))
    return _fields(columns, "")


def with_names(fields: tuple[Field, ...], above: str = "") -> Iterator[tuple[str, Field]]:
    """Each field with its path, inside structs too: `properties`, `properties.ms`."""
    for each in fields:
        path = f"{above}{each.name}"
        yield path, each
        if each.type.kind == "struct":
            yield from with_names(each.type.fields, f"{path}.")


def _is_field(node: exp.Expression) -> bool:
    return isinstance(node, exp.ColumnDef) and node.kind is not None


def _fields(columns: list[exp.Expression], above: str, *, in_collection: bool = False) -> tuple[Field, ...]:
    """The fields of an event or of a struct; `above` is the path of the struct, with a dot."""
    fields = tuple(_field(column, above, in_collection) for column in columns)
    names = [field.name.lower() for field in fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        where = f"{above[:-1]}: " if above else ""
        raise DeclarationError(f"{where}{twice} are declared more than once (Spark ignores case). Rename one of them.")
    return fields


def is_usable_name(name: str) -> bool:
    """Whether a field may have this name, at any depth."""
    return bool(name) and not any(each in UNUSABLE_IN_NAMES for each in name) and name.lower() not in RESERVED_NAMES


def _field(column: exp.Expression, above: str, in_collection: bool) -> Field:
    path = f"{above}{column.name}"
    if not column.name or any(character in UNUSABLE_IN_NAMES for character in column.name):
        inside = f" in {above[:-1]}" if above else ""
        raise DeclarationError(
            f"the field name {column.name!r}{inside} cannot be used: a name has at least one "
            "character, and no space, line end, tab, dot, comma, semicolon, backtick, '=', bracket or brace. Rename it."
        )
    if path.lower() in RESERVED_NAMES:
        raise DeclarationError(f"the field name {path!r} is reserved by Spark's JSON reader. Rename it.")
    type_ = _type(column.args["kind"], path, in_collection=in_collection)
    is_required, default = False, None
    for constraint in column.args.get("constraints") or ():
        match constraint.kind:
            case exp.CommentColumnConstraint():
                continue
            case exp.NotNullColumnConstraint() if not constraint.kind.args.get("allow_null"):
                is_required = True
            case exp.DefaultColumnConstraint():
                default = _default(constraint.kind.this, type_, path)
            case _:
                said = constraint.sql("spark") or "NULL"
                raise DeclarationError(
                    f"{path}: {said!r} would not be kept: a field may have NOT NULL, DEFAULT and a comment. "
                    f"Write '{column.name} {column.args['kind'].sql('spark').lower()}'."
                )
        if in_collection:
            raise DeclarationError(
                f"{path}: {constraint.sql('spark')!r} cannot be kept inside an array or a map. "
                f"Write '{column.name} {column.args['kind'].sql('spark').lower()}'."
            )
    return Field(column.name, type_, is_required, default)


def _default(node: exp.Expression, type_: FieldType, path: str) -> Any:
    """The value of a DEFAULT: a constant of the field's type."""
    sign = "-" if isinstance(node, exp.Neg) else ""
    inner = node.this if sign else node
    if isinstance(inner, exp.Boolean) and not sign:
        value = constant_of(type_.kind, inner.this)
    elif isinstance(inner, exp.Literal) and not (sign and inner.is_string):
        value = constant_of(type_.kind, sign + inner.this, type_.precision, type_.scale, is_text=inner.is_string)
    else:
        value = None
    if value is None:
        raise DeclarationError(
            f"{path}: {node.sql('spark')!r} is no default of a {type_.ddl()}: write a constant of that type, such as "
            "0, 1.50, 'text', true or '2026-01-31'. A field without a default is null where it is absent."
        )
    return value


def _type(node: exp.Expression, path: str, *, in_collection: bool) -> FieldType:
    """The type at `path`, which only the errors need. `in_collection`: inside an array or a map."""
    if not isinstance(node, exp.DataType):
        raise DeclarationError(f"{path}: {node.sql('spark')!r} is not a type.")
    name = node.this.name if hasattr(node.this, "name") else str(node.this)
    if name in SCALARS:
        if node.expressions:
            raise DeclarationError(f"{path}: a {SCALARS[name]} has no length here. Write '{SCALARS[name]}' alone.")
        return FieldType(SCALARS[name])
    match name:
        case "DECIMAL":
            return _decimal(node, path)
        case "ARRAY" | "LIST" if len(node.expressions) == 1:
            return FieldType("array", element=_type(node.expressions[0], path, in_collection=True))
        case "MAP" if len(node.expressions) == 2:
            if _type(node.expressions[0], path, in_collection=True).kind != "string":
                raise DeclarationError(
                    f"{path}: {node.sql('spark')!r}: the keys of a JSON object are strings; use map<string, …>."
                )
            return FieldType("map", element=_type(node.expressions[1], path, in_collection=True))
        case "STRUCT" if node.expressions and all(map(_is_field, node.expressions)):
            inner = _fields(node.expressions, f"{path}.", in_collection=in_collection)
            return FieldType("struct", fields=inner)
    known = ", ".join(sorted({*SCALARS.values(), "decimal(p,s)", "array<…>", "map<string,…>", "struct<…>"}))
    raise DeclarationError(f"{path}: the type {node.sql('spark')!r} is not supported. There are: {known}.")


def _decimal(node: exp.DataType, path: str) -> FieldType:
    given = [parameter.name for parameter in node.expressions] or ["10"]
    if len(given) <= 2 and all(number.isdecimal() for number in given):
        precision, scale = int(given[0]), int(given[1]) if len(given) > 1 else 0
        if 1 <= precision <= MAX_PRECISION and scale <= precision:
            return FieldType("decimal", precision=precision, scale=scale)
    raise DeclarationError(
        f"{path}: {node.sql('spark').lower()!r} is not a decimal that Spark has. Write decimal(p,s) with a precision p "
        f"of 1 to {MAX_PRECISION} and a scale s of at most p."
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
