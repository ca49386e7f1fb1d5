"""The types that an event's fields may have, read from Spark DDL without a JVM."""

from __future__ import annotations

from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

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
MAX_PRECISION = 38

INTEGER_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


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
    """A named field of an event or of a struct."""

    name: str
    type: FieldType


def parse_fields(ddl: str) -> tuple[Field, ...]:
    """`url string, ms int` -> its fields. Raises DeclarationError with the field, or the text that is not DDL."""
    try:
        table = sqlglot.parse_one(f"CREATE TABLE t ({ddl})", dialect="spark")
    except SqlglotError as error:
        raise DeclarationError(f"{ddl!r} is not Spark DDL like 'url string, ms int': {_first_line(error)}") from None
    columns = list(table.this.expressions) if isinstance(table.this, exp.Schema) else []
    if not columns or table.args.get("properties") or not all(map(_is_field, columns)):
        raise DeclarationError(f"{ddl!r} is not Spark DDL like 'url string, ms int'.")
    return _fields(columns, "")


def _is_field(node: exp.Expression) -> bool:
    return isinstance(node, exp.ColumnDef) and node.kind is not None


def _fields(columns: list[exp.Expression], above: str) -> tuple[Field, ...]:
    """The fields of an event or of a struct; `above` is the path of the struct, with a dot."""
    fields = tuple(_field(column, above) for column in columns)
    names = [field.name.lower() for field in fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        where = f"{above[:-1]}: " if above else ""
        raise DeclarationError(f"{where}{twice} are declared more than once (Spark ignores case). Rename one of them.")
    return fields


def _field(column: exp.Expression, above: str) -> Field:
    path = f"{above}{column.name}"
    if not column.name or any(character in UNUSABLE_IN_NAMES for character in column.name):
        inside = f" in {above[:-1]}" if above else ""
        raise DeclarationError(
            f"the field name {column.name!r}{inside} cannot be used: a name has at least one "
            "character, and no space, line end, tab, dot, comma, semicolon, backtick, '=', bracket or brace. Rename it."
        )
    if path.lower() in RESERVED_NAMES:
        raise DeclarationError(f"the field name {path!r} is reserved by Spark's JSON reader. Rename it.")
    for constraint in column.args.get("constraints") or ():
        if not isinstance(constraint.kind, exp.CommentColumnConstraint):
            said = constraint.sql("spark") or "NULL"
            raise DeclarationError(
                f"{path}: {said!r} would not be kept: any field of an event may be absent or null, "
                f"and has the value that was sent. Write '{column.name} {column.args['kind'].sql('spark').lower()}'."
            )
    return Field(column.name, _type(column.args["kind"], path))


def _type(node: exp.Expression, path: str) -> FieldType:
    """The type at `path`, which only the errors need."""
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
            return FieldType("array", element=_type(node.expressions[0], path))
        case "MAP" if len(node.expressions) == 2:
            if _type(node.expressions[0], path).kind != "string":
                raise DeclarationError(
                    f"{path}: {node.sql('spark')!r}: the keys of a JSON object are strings; use map<string, …>."
                )
            return FieldType("map", element=_type(node.expressions[1], path))
        case "STRUCT" if node.expressions and all(map(_is_field, node.expressions)):
            return FieldType("struct", fields=_fields(node.expressions, f"{path}."))
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
