"""Avro schemas: the fields that a source has by its reader schema, and whether a writer's schema can be read by it.

Three forms of a schema are derived from its JSON:

- `reading`: of a reader schema, with the types that the table has: int becomes long and float double, so that the usual
  widenings of a field change no table. Only the logical types that become a type of ours are left.
- `plain`: of a writer schema, what its bytes depend on and nothing else. Writers that differ in docs or defaults only
  have the same.
- the envelope: a record with the event and, after it, the bytes END. Decoded from the payload followed by END it shows
  whether a record has its length: one that is too short runs into END, one that is too long stands before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from views.errors import DeclarationError
from views.field_types import MAX_PRECISION, RESERVED_NAMES, Field, FieldType

END = b"\x00tdmk\xff\x80\xfe"
MAX_DEPTH = 64
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


def avro_reader(text: str) -> AvroReader:
    """The reader schema in a declaration. SchemaError names the path of what cannot be a field."""
    schema = parsed(text)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise SchemaError('an event is a record; the reader schema\'s outermost type should be "record".')
    names = Names()
    names.learn(schema, "", "")
    fields = _fields(schema, names, "", ())
    aliases = frozenset(unqualified(each) for each in schema.get("aliases", ()))
    return AvroReader(text, unqualified(schema["name"]), aliases, fields, _reading(schema, names, set()))


def plain_writer(text: str, references: tuple[tuple[str, str], ...] = ()) -> Json:
    """A writer's schema, in its plain form, with the schemas that it refers to put where they are needed first."""
    names = Names()
    for _, other in references:
        names.learn(parsed(other), "", "")
    schema = parsed(text)
    names.learn(schema, "", "")
    return _plain(schema, names, set(), "")


def envelope(schema: Json) -> str:
    """The schema of an event that is followed by END."""
    end = {"type": "fixed", "name": "tidemark_end", "size": len(END)}
    fields = [{"name": "event", "type": schema}, {"name": "end", "type": end}]
    return json.dumps({"type": "record", "name": "tidemark_envelope", "fields": fields})


def mismatch(reader: AvroReader, text: str, references: tuple[tuple[str, str], ...] = ()) -> str | None:
    """Why nothing that was written by a schema can be read by the reader, although its bytes could be; else None.

    Avro itself says nothing of logical types here: a timestamp in milliseconds would be read as one in microseconds.
    """
    names = Names()
    for _, other in references:
        names.learn(parsed(other), "", "")
    writer = parsed(text)
    names.learn(writer, "", "")
    if not isinstance(writer, dict) or writer.get("type") != "record":
        return "it is no record"
    name = unqualified(writer["name"])
    if name != reader.name and name not in reader.aliases:
        return f"it is of {name!r}, and this source reads {reader.name!r}"
    ours, declared = Names(), parsed(reader.text)
    ours.learn(declared, "", "")
    return next(_differences(writer, declared, names, ours, "", 0), None)


# ---- names -----------------------------------------------------------


class Names:
    """The named types of a schema, by full name."""

    def __init__(self) -> None:
        self.types: dict[str, dict[str, Any]] = {}
        self.full: dict[int, str] = {}
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
    for field in fields:
        if f"{above}{field.name}".lower() in RESERVED_NAMES:
            raise SchemaError(f"the field name {field.name!r} is reserved. Rename it, with the old name as an alias.")
    return fields


def type_of(schema: Json, names: Names, path: str, within: tuple[str, ...] = ()) -> FieldType:
    """The type of the column that holds values of a schema. SchemaError where there is none."""
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


def _reading(schema: Json, names: Names, done: set[str]) -> Json:
    """As the table has it: see the module's first lines. A type that stands twice is a name the second time."""
    found = names.resolve(schema)
    if isinstance(found, list):
        return [_reading(each, names, done) for each in found]
    kind, logical = found["type"], found.get("logicalType")
    match kind:
        case "record" | "error" | "enum" | "fixed":
            return _named(found, names, done, lambda each: _reading(each, names, done), is_reader=True)
        case "array":
            return {"type": "array", "items": _reading(found["items"], names, done)}
        case "map":
            return {"type": "map", "values": _reading(found["values"], names, done)}
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


def _decimal_members(schema: dict[str, Any]) -> dict[str, Any]:
    return {"logicalType": "decimal", "precision": schema["precision"], "scale": schema.get("scale", 0)}


def _plain(schema: Json, names: Names, done: set[str], path: str) -> Json:
    """What bytes depend on."""
    found = names.resolve(schema, path)
    if isinstance(found, list):
        return [_plain(each, names, done, path) for each in found]
    match found["type"]:
        case "record" | "error" | "enum" | "fixed":
            return _named(found, names, done, lambda each: _plain(each, names, done, path), is_reader=False)
        case "array":
            if _takes_no_bytes(found["items"], names, 0):
                raise SchemaError("it has arrays of elements without bytes: a short record could have any number")
            return {"type": "array", "items": _plain(found["items"], names, done, f"{path}[]")}
        case "map":
            return {"type": "map", "values": _plain(found["values"], names, done, f"{path}[]")}
    return found["type"]


def _named(
    found: dict[str, Any], names: Names, done: set[str], part: Callable[[Json], Json], *, is_reader: bool
) -> Json:
    full = names.full[id(found)]
    if full in done:
        return full
    done.add(full)
    made: dict[str, Any] = {"type": "record" if found["type"] == "error" else found["type"], "name": full}
    if is_reader and found.get("aliases"):
        made["aliases"] = found["aliases"]
    match made["type"]:
        case "record":
            made["fields"] = [
                {"name": each["name"], "type": part(each["type"])}
                | ({name: each[name] for name in ("default", "aliases") if name in each} if is_reader else {})
                for each in found["fields"]
            ]
        case "enum":
            made["symbols"] = found["symbols"]
            if is_reader and "default" in found:
                made["default"] = found["default"]
        case "fixed":
            made["size"] = found["size"]
            if is_reader and found.get("logicalType") == "decimal":
                made |= _decimal_members(found)
    return made


def _takes_no_bytes(schema: Json, names: Names, depth: int) -> bool:
    found = names.resolve(schema)
    if depth > MAX_DEPTH or isinstance(found, list):
        return False
    if found["type"] in ("record", "error"):
        return all(_takes_no_bytes(each["type"], names, depth + 1) for each in found["fields"])
    return bool(found["type"] == "null" or (found["type"] == "fixed" and found["size"] == 0))


# ---- whether a writer means the same ---------------------------------


def _differences(
    writer: Json, reader: Json, of_writer: Names, of_reader: Names, path: str, depth: int
) -> Iterator[str]:
    writer, reader = of_writer.resolve(writer, path), of_reader.resolve(reader, path)
    if depth > MAX_DEPTH:
        return
    if isinstance(reader, list):
        reader = of_reader.resolve(next((each for each in reader if each not in ("null", {"type": "null"})), "null"))
    if isinstance(writer, list):
        for each in writer:
            yield from _differences(each, reader, of_writer, of_reader, path, depth + 1)
        return
    kinds = writer["type"], reader["type"]
    where = path or "the record"
    if kinds[0] == kinds[1] and kinds[0] in NAMED and path:
        name, other = unqualified(reader["name"]), unqualified(writer["name"])
        if name != other and other not in map(unqualified, reader.get("aliases", ())):
            yield f"{where} is of {other!r}, and this source reads {name!r}"
    match kinds:
        case "record", "record":
            there = {each["name"]: each for each in writer["fields"]}
            for field in reader["fields"]:
                names = (field["name"], *field.get("aliases", ()))
                match = next((there[name] for name in names if name in there), None)
                if match is not None:
                    at = f"{path}.{field['name']}".lstrip(".")
                    yield from _differences(match["type"], field["type"], of_writer, of_reader, at, depth + 1)
        case "array", "array":
            yield from _differences(writer["items"], reader["items"], of_writer, of_reader, f"{path}[]", depth + 1)
        case "map", "map":
            yield from _differences(writer["values"], reader["values"], of_writer, of_reader, f"{path}[]", depth + 1)
        case "string", "bytes" if reader.get("logicalType") != "decimal":
            yield f"{where} is string, and this source reads bytes"
        case _:
            ours, theirs = logical_meaning(reader), logical_meaning(writer)
            if ours and theirs and ours != theirs:
                yield f"{where} is {_said(writer)}, and this source reads {_said(reader)}"


def logical_meaning(schema: dict[str, Any]) -> tuple[Any, ...]:
    """What a number means beyond being one; empty where the schema does not say."""
    logical = str(schema.get("logicalType"))
    if logical == "decimal":
        return logical, schema.get("scale", 0)
    return (logical,) if logical.startswith(("date", "time", "local-timestamp")) else ()


def _said(schema: dict[str, Any]) -> str:
    logical = schema.get("logicalType")
    if logical == "decimal":
        return f"decimal({schema.get('precision')},{schema.get('scale', 0)})"
    return str(logical or schema["type"])
