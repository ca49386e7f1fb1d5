"""How a writer's Avro schema is read by a reader's: which of its fields and types are which, and what cannot be.

Avro itself goes by full names, and applies the aliases of a field only within a record that has the reader's name and
namespace; decoders differ in what else they do. So they get no aliases to apply: the writer's schema has the reader's
names already.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any

from views.formats.avro_schema import MAX_DEPTH, NAMED, AvroReader, Json, Names, envelope, unqualified
from views.formats.avro_writer import check_elements, learned, plain


def mismatch(reader: AvroReader, text: str, references: tuple[tuple[str, str], ...] = ()) -> str | None:
    """Why nothing that was written by a schema can be read by the reader; else None, and every decoder takes `written`.

    Avro itself says nothing of logical types here: a timestamp in milliseconds would be read as one in microseconds.
    SchemaError for a schema that is none, or that no decoder should follow.
    """
    writer, names = learned(text, references)
    if not isinstance(writer, dict) or writer.get("type") != "record":
        return "it is no record"
    name = unqualified(writer["name"])
    if name != reader.name and name not in reader.aliases:
        return f"it is of {name!r}, and this source reads {reader.name!r}"
    declared, ours = learned(reader.text)
    if difference := next(_differences(writer, declared, names, ours, "", 0), None):
        return difference
    # The writer's own names first, for its producers; then those that it is decoded by, which may meet among its own.
    forms = envelope(plain(writer, names, set(), "")), written(reader, text, references)
    return next((why for form in forms if (why := _why_no_avro(form))), None)


def wanted(reader: AvroReader) -> str:
    """The schema that records are decoded to, with its envelope."""
    return envelope(_without_aliases(reader.reading))


def written(reader: AvroReader, text: str, references: tuple[tuple[str, str], ...] = ()) -> str:
    """The schema that records of a writer are decoded by, with its envelope: in plain form, with the reader's names.

    Writers whose records are the same bytes with the same meaning have the same.
    """
    schema, names = learned(text, references)
    return envelope(_named_as_read(schema, reader.reading, names, set(), ""))


@lru_cache(maxsize=256)
def _why_no_avro(text: str) -> str | None:
    """Why decoders do not take a schema, which differ in what they check: a repeated field, or an enum symbol `a-b`."""
    from views.schemas import AVRO, InvalidSchema, parse

    try:
        parse(AVRO, json.dumps(_with_ascii_names(json.loads(text))))
    except InvalidSchema as error:
        return f"it is not Avro: {str(error).rstrip('.')}"
    return None


def _with_ascii_names(schema: Json) -> Json:
    """Decoders take letters of any script in names, other than the specification, but for the symbols of an enum."""
    if isinstance(schema, str):
        return "".join(each if each.isascii() or not each.isalnum() else f"_{ord(each):x}_" for each in schema)
    if isinstance(schema, list):
        return [_with_ascii_names(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: value if name == "symbols" else _with_ascii_names(value) for name, value in schema.items()}


def matched_fields(reader: list[dict[str, Any]], written: Collection[str]) -> dict[str, dict[str, Any]]:
    """Names of a writer's fields -> the reader's field that reads each.

    A field of the reader's own name comes first; aliases are for the other fields of both, in their order.
    """
    found = {field["name"]: field for field in reader if field["name"] in written}
    for field in reader:
        if field["name"] not in found:
            name = next((alias for alias in field.get("aliases", ()) if alias in written and alias not in found), None)
            if name is not None:
                found[name] = field
    return found


def _without_aliases(schema: Json) -> Json:
    if isinstance(schema, list):
        return [_without_aliases(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value if name == "default" else _without_aliases(value)
        for name, value in schema.items()
        if name != "aliases"
    }


def _named_as_read(schema: Json, reading: Json, names: Names, done: set[str], path: str) -> Json:
    """A writer's schema with the names of a reading, as far as that reads it. The rest is plain."""
    found = names.resolve(schema, path)
    if isinstance(found, list):
        return list(_branches(found, reading, names, done, path))
    if isinstance(reading, list):
        reading = next(each for each in reading if each != "null")
    kinds = found["type"], reading if isinstance(reading, str) else reading["type"]
    match kinds:
        case "record" | "error", "record":
            matched = matched_fields(reading["fields"], {each["name"] for each in found["fields"]})
            fields = []
            for each in found["fields"]:
                read, at = matched.get(each["name"]), f"{path}.{each['name']}".lstrip(".")
                type_ = (
                    plain(each["type"], names, done, at)
                    if read is None
                    else _named_as_read(each["type"], read["type"], names, done, at)
                )
                fields.append({"name": each["name"] if read is None else read["name"], "type": type_})
            return {"type": "record", "name": reading["name"], "fields": fields}
        case "enum", "enum":
            return {"type": "enum", "name": reading["name"], "symbols": found["symbols"]}
        case "fixed", "fixed":
            return {"type": "fixed", "name": reading["name"], "size": found["size"]}
        case "array", "array":
            check_elements(found, names)
            items = _named_as_read(found["items"], reading["items"], names, done, f"{path}[]")
            return {"type": "array", "items": items}
        case "map", "map":
            return {
                "type": "map",
                "values": _named_as_read(found["values"], reading["values"], names, done, f"{path}[]"),
            }
    return plain(found, names, done, path)


def _branches(union: list[Json], reading: Json, names: Names, done: set[str], path: str) -> Iterator[Json]:
    """Of several branches of one kind the first has the reader's name: a union has each name once."""
    kinds = set()
    for branch in union:
        kind = names.resolve(branch, path)["type"]
        yield plain(branch, names, done, path) if kind in kinds else _named_as_read(branch, reading, names, done, path)
        kinds.add(kind)


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
            for name, field in matched_fields(reader["fields"], there).items():
                at = f"{path}.{field['name']}".lstrip(".")
                yield from _differences(there[name]["type"], field["type"], of_writer, of_reader, at, depth + 1)
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
