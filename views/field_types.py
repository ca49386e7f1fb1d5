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
    """`url string, ms int` -> its fields. Raises DeclarationError with the text that could not be read."""
    try:
        table = sqlglot.parse_one(f"CREATE TABLE t ({ddl})", dialect="spark")
    except SqlglotError as error:
        raise DeclarationError(f"{ddl!r} is not Spark DDL like 'url string, ms int': {_first_line(error)}") from None
    columns = list(table.this.expressions) if isinstance(table.this, exp.Schema) else []
    if not columns or not all(isinstance(column, exp.ColumnDef) and column.kind for column in columns):
        raise DeclarationError(f"{ddl!r} is not Spark DDL like 'url string, ms int'.")
    return tuple(Field(column.name, _type(column.args["kind"])) for column in columns)


def _type(node: exp.Expression) -> FieldType:
    if not isinstance(node, exp.DataType):
        raise DeclarationError(f"{node.sql('spark')!r} is not a type.")
    name = node.this.name if hasattr(node.this, "name") else str(node.this)
    if name in SCALARS:
        return FieldType(SCALARS[name])
    match name:
        case "DECIMAL":
            numbers = [int(parameter.name) for parameter in node.expressions] or [10]
            return FieldType("decimal", precision=numbers[0], scale=numbers[1] if len(numbers) > 1 else 0)
        case "ARRAY" | "LIST" if len(node.expressions) == 1:
            return FieldType("array", element=_type(node.expressions[0]))
        case "MAP" if len(node.expressions) == 2:
            if _type(node.expressions[0]).kind != "string":
                raise DeclarationError(
                    f"{node.sql('spark')!r}: the keys of a JSON object are strings; use map<string, …>."
                )
            return FieldType("map", element=_type(node.expressions[1]))
        case "STRUCT" if node.expressions:
            fields = tuple(Field(part.name, _type(part.args["kind"])) for part in node.expressions)
            return FieldType("struct", fields=fields)
    known = ", ".join(sorted({*SCALARS.values(), "decimal(p,s)", "array<…>", "map<string,…>", "struct<…>"}))
    raise DeclarationError(f"The type {node.sql('spark')!r} is not supported. There are: {known}.")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
