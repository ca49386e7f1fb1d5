"""Avro schemas: the fields that a source has by its reader schema, and the forms of a schema that decode records.

Three forms of a schema are derived from its JSON:

- `reading`: of a reader schema, with the types that the table has: int becomes long and float double, so that the usual
  widenings of a field change no table. Only the logical types that become a type of ours are left. Named types have a
  name for each place where they are used, which the writer's are given too (`avro_resolution.py`).
- `plain`: of a writer schema, what its bytes depend on and nothing else. Writers that differ in docs or defaults only
  have the same.
- the envelope: a record with the event and, after it, the bytes END. Decoded from the payload followed by END it shows
  whether a record has its length: one that is too short runs into END, one that is too long stands before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

from views.errors import DeclarationError
from views.field_types import MAX_PRECISION, RESERVED_NAMES, Field, FieldType

END = b"\x00tdmk\xff\x80\xfe"
MAX_DEPTH = 64
MAX_TYPES = 100_000
TOO_MANY_TYPES = f"it has more than {MAX_TYPES:,} types where each named type is written out"
MAX_TEXT = 4_000_000
"""Characters of a schema: the largest that a registry would take are smaller."""
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMED = ("record", "enum", "fixed")
LOCAL_TIMES = ("local-timestamp-millis", "local-timestamp-micros")

Json = Any


class SchemaError(DeclarationError):
    """A schema that is none, or that a source cannot have."""


@dataclass(frozen=True)
class AvroReader:
    """What a source reads Avro by."""

    TYPE: ClassVar[str] = "AVRO"
    text: str
    name: str
    """Of the record, without its namespace."""
    aliases: frozenset[str]
    fields: tuple[Field, ...]
    reading: Json
    """With the aliases of its fields."""


def avro_reader(text: str) -> AvroReader:
    """The reader schema in a declaration. SchemaError names the path of what cannot be a field."""
    schema = parsed(text)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise SchemaError('an event is a record; the reader schema\'s outermost type should be "record".')
    names = Names()
    names.learn(schema, "", "")
    fields = _fields(schema, names, "", ())
    _check_defaults(text)
    aliases = frozenset(unqualified(each) for each in schema.get("aliases", ()))
    return AvroReader(text, unqualified(schema["name"]), aliases, fields, _reading(schema, names, count(1)))


def envelope(schema: Json) -> str:
    """The schema of an event that is followed by END."""
    end = {"type": "fixed", "name": "tidemark_end", "size": len(END)}
    fields = [{"name": "event", "type": schema}, {"name": "end", "type": end}]
    return json.dumps({"type": "record", "name": "tidemark_envelope", "fields": fields})


# ---- names -----------------------------------------------------------


class Names:
    """The named types of a schema, by full name."""

    def __init__(self) -> None:
        self.types: dict[str, dict[str, Any]] = {}
        self.full: dict[int, str] = {}
        self.used = count()
        """Counts the types that a reader schema has where each named type is written out."""
        self._kept: list[Json] = []
        """`full` goes by identity: the types must live as long."""

    def learn(self, schema: Json, namespace: str, path: str, depth: int = 0) -> None:
        """Find all named types, and make every reference to one its full name. Refuses what is not Avro."""
        if depth > MAX_DEPTH:
            raise SchemaError(f"{path or 'the schema'}: it is nested deeper than {MAX_DEPTH} levels.")
        if isinstance(schema, list):
            for branch in schema:
                self.learn(branch, namespace, path, depth + 1)
        elif isinstance(schema, dict):
            self._learn_type(schema, namespace, path, depth)
        elif not isinstance(schema, str):
            raise SchemaError(f"{path or 'the schema'}: {str(schema)[:60]!r} is not a type.")

    def _learn_type(self, schema: dict[str, Any], namespace: str, path: str, depth: int) -> None:
        kind = schema.get("type")
        if kind in NAMED or kind == "error":
            given = schema.get("name")
            if not isinstance(given, str) or not given:
                raise SchemaError(f"{path or 'the schema'}: a {kind} needs a name.")
            own = schema.get("namespace")
            full = given if "." in given else f"{own if isinstance(own, str) else namespace}.{given}".lstrip(".")
            known = self.types.setdefault(full, schema)
            if known is not schema and known != schema:
                raise SchemaError(f"{path or 'the schema'}: {full!r} is defined twice.")
            self.full[id(schema)] = full
            self._kept.append(schema)
            namespace = full.rpartition(".")[0]
        match kind:
            case "record" | "error":
                fields = schema.get("fields")
                if not isinstance(fields, list) or not all(isinstance(each, dict) for each in fields):
                    raise SchemaError(f"{path or 'the schema'}: a record needs fields.")
                for each in fields:
                    if not isinstance(each.get("name"), str) or "type" not in each:
                        raise SchemaError(f"{path or 'the schema'}: each field of a record needs a name and a type.")
                    each["type"] = self._full_reference(each["type"], namespace)
                    self.learn(each["type"], namespace, f"{path}.{each['name']}".lstrip("."), depth + 1)
            case "array" | "map":
                part = "items" if kind == "array" else "values"
                if part not in schema:
                    raise SchemaError(f"{path or 'the schema'}: an {kind} needs {part}.")
                schema[part] = self._full_reference(schema[part], namespace)
                self.learn(schema[part], namespace, f"{path}[]", depth + 1)
            case "enum":
                symbols = schema.get("symbols")
                if not isinstance(symbols, list) or not symbols or not all(isinstance(each, str) for each in symbols):
                    raise SchemaError(f"{path or 'the schema'}: an enum needs symbols.")
            case "fixed":
                if type(schema.get("size")) is not int or schema["size"] < 0:
                    raise SchemaError(f"{path or 'the schema'}: a fixed needs a size.")
            case str():
                schema["type"] = self._full_reference(kind, namespace)
            case _:
                schema["type"] = self._full_reference(kind, namespace)
                self.learn(schema["type"], namespace, path, depth + 1)

    def _full_reference(self, schema: Json, namespace: str) -> Json:
        if isinstance(schema, list):
            return [self._full_reference(each, namespace) for each in schema]
        if not isinstance(schema, str) or schema in PRIMITIVES or "." in schema:
            return schema
        full = f"{namespace}.{schema}".lstrip(".")
        return full if full in self.types or schema not in self.types else schema

    def resolve(self, schema: Json, path: str = "") -> Json:
        """A named type for a name; `{"type": X}` without more for X."""
        if isinstance(schema, str) and schema not in PRIMITIVES:
            if schema not in self.types:
                raise SchemaError(f"{path or 'the schema'}: the type {schema[:100]!r} is not defined.")
            return self.types[schema]
        if isinstance(schema, dict):
            kind = schema.get("type")
            if isinstance(kind, list | dict) or (
                isinstance(kind, str) and kind not in (*PRIMITIVES, *NAMED, "error", "array", "map")
            ):
                return self.resolve(kind, path)
        return {"type": schema} if isinstance(schema, str) else schema


def parsed(text: str) -> Json:
    """The JSON of a schema. SchemaError where it is none."""
    if len(text) > MAX_TEXT:
        raise SchemaError(f"the schema has {len(text):,} characters; at most {MAX_TEXT:,} are taken.")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.strip().strip('"') in PRIMITIVES:
            return text.strip().strip('"')
        raise SchemaError(f"the schema is not JSON, as Avro's are: {error}") from None


def unqualified(name: str) -> str:
    """`shop.Order` -> `Order`"""
    return str(name).rpartition(".")[2]


# ---- fields of a source ----------------------------------------------


def _fields(record: Json, names: Names, above: str, within: tuple[str, ...]) -> tuple[Field, ...]:
    full = names.full[id(record)]
    if full in within:
        raise SchemaError(f"{above[:-1]}: {full!r} contains itself; a table cannot have such a column. Leave it out.")
    fields = tuple(
        Field(each["name"], type_of(each["type"], names, f"{above}{each['name']}", (*within, full)))
        for each in record["fields"]
    )
    if not fields:
        raise SchemaError(f"{above[:-1] or 'the schema'}: a record without fields holds nothing. Leave it out.")
    lower = [field.name.lower() for field in fields]
    if twice := sorted({name for name in lower if lower.count(name) > 1}):
        raise SchemaError(
            f"{above}{twice[0]}: several fields have this name (Spark ignores case). Leave out all but one."
        )
    for each in record["fields"]:
        _check_enum_default(each, names, f"{above}{each['name']}")
    for field in fields:
        if f"{above}{field.name}".lower() in RESERVED_NAMES:
            raise SchemaError(f"the field name {field.name!r} is reserved. Rename it, with the old name as an alias.")
    return fields


def _check_defaults(text: str) -> None:
    """Refuse what Spark's decoder would refuse when the first record comes: a default that is no value of its type."""
    from views.schemas import AVRO, InvalidSchema, parse

    try:
        parse(AVRO, text)
    except InvalidSchema as error:
        raise SchemaError(str(error)) from None


def _check_enum_default(field: dict[str, Any], names: Names, path: str) -> None:
    found = names.resolve(field["type"], path)
    branches = [names.resolve(each, path) for each in found] if isinstance(found, list) else [found]
    symbols = [symbol for each in branches if each["type"] == "enum" for symbol in each["symbols"]]
    if symbols and isinstance(field.get("default"), str) and field["default"] not in symbols:
        raise SchemaError(f"{path}: the default {field['default']!r} is none of its symbols {symbols}.")


def type_of(schema: Json, names: Names, path: str, within: tuple[str, ...] = ()) -> FieldType:
    """The type of the column that holds values of a schema. SchemaError where there is none."""
    if next(names.used) >= MAX_TYPES:
        raise SchemaError(TOO_MANY_TYPES)
    found = names.resolve(schema, path)
    if isinstance(found, list):
        rest = [each for each in found if each != "null" and each != {"type": "null"}]
        if len(rest) != 1:
            raise SchemaError(
                f"{path}: a union of {json.dumps(found)[:80]} has no one type. A field may be of one type, or that and "
                "null. Leave it out of the reader schema: what writers have more is skipped."
            )
        return type_of(rest[0], names, path, within)
    kind, logical = found["type"], found.get("logicalType")
    match kind:
        case "record" | "error":
            return FieldType("struct", fields=_fields(found, names, f"{path}.", within))
        case "array":
            return FieldType("array", element=type_of(found["items"], names, f"{path}[]", within))
        case "map":
            return FieldType("map", element=type_of(found["values"], names, f"{path}[]", within))
        case "enum" | "string":
            return FieldType("string")
        case "boolean":
            return FieldType("boolean")
        case "float" | "double":
            return FieldType("double")
        case "int" if logical == "date":
            return FieldType("date")
        case "long" if logical in ("timestamp-millis", "timestamp-micros"):
            return FieldType("timestamp")
        case "long" if logical in LOCAL_TIMES:
            return FieldType("string")
        case "int" | "long" if not str(logical).startswith("local-timestamp"):
            return FieldType("bigint")
        case "bytes" | "fixed" if logical == "decimal":
            return _decimal(found, path)
        case "bytes" | "fixed" if logical not in ("duration", "big-decimal", "uuid"):
            return FieldType("string")
    said = f"{kind} ({logical})" if logical else str(kind)
    raise SchemaError(
        f"{path}: the type {said} is not supported in a source. Leave it out of the reader schema: what writers have "
        "more is skipped."
    )


def _decimal(schema: dict[str, Any], path: str) -> FieldType:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is int and type(scale) is int and 1 <= precision <= MAX_PRECISION and 0 <= scale <= precision:
        return FieldType("decimal", precision=precision, scale=scale)
    raise SchemaError(f"{path}: a decimal({precision},{scale}) is none that Spark has: at most {MAX_PRECISION} digits.")


# ---- forms -----------------------------------------------------------


def _reading(schema: Json, names: Names, numbers: Iterator[int]) -> Json:
    """As the table has it: see the module's first lines. No reader schema contains itself."""
    found = names.resolve(schema)
    if isinstance(found, list):
        return [_reading(each, names, numbers) for each in found]
    kind, logical = found["type"], found.get("logicalType")
    match kind:
        case "record" | "error" | "enum" | "fixed":
            return _named_reading(found, names, numbers)
        case "array":
            return {"type": "array", "items": _reading(found["items"], names, numbers)}
        case "map":
            return {"type": "map", "values": _reading(found["values"], names, numbers)}
        case "int" if logical == "date":
            return {"type": "int", "logicalType": "date"}
        case "int" | "long":
            is_time = kind == "long" and logical in ("timestamp-millis", "timestamp-micros", *LOCAL_TIMES)
            return {"type": "long", "logicalType": logical} if is_time else "long"
        case "float":
            return "double"
        case "bytes" if logical == "decimal":
            return {"type": "bytes", **_decimal_members(found)}
    return kind


def _named_reading(found: dict[str, Any], names: Names, numbers: Iterator[int]) -> Json:
    kind = "record" if found["type"] == "error" else found["type"]
    made: dict[str, Any] = {"type": kind, "name": f"tidemark_{next(numbers)}"}
    match kind:
        case "record":
            made["fields"] = [
                {"name": each["name"], "type": _reading(each["type"], names, numbers)}
                | {name: each[name] for name in ("default", "aliases") if name in each}
                for each in found["fields"]
            ]
        case "enum":
            made |= {name: found[name] for name in ("symbols", "default") if name in found}
        case "fixed":
            made["size"] = found["size"]
            if found.get("logicalType") == "decimal":
                made |= _decimal_members(found)
    return made


def _decimal_members(schema: dict[str, Any]) -> dict[str, Any]:
    return {"logicalType": "decimal", "precision": schema["precision"], "scale": schema.get("scale", 0)}
