"""Sources that evolve, by every format: the version in force reads all records, whoever wrote them and in any order.

The oracle knows fields by identity, as a person does: what was written as one is read as that, under whatever name a
version gives it; what a writer did not have is the default, or null. A format's own rules come in where they say what
bytes can say: JSON judges widths, Avro wants a default for what is new, Protobuf does not write zeros.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pytest
from google.protobuf import message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from master_dataset.errors import InvalidEvent
from master_dataset.events.raw_records import RawRecord, RecordReader
from views.evolution import evolution
from views.formats.framing import GUID_BYTE, HEADER, frame_of_id
from views.formats.protobuf_schema import compiled, pool_of
from views.formats.writer_schemas import WriterSchema
from views.source import Source

AT = datetime(2026, 5, 2, 12, tzinfo=UTC)
AT_MS = int(AT.timestamp() * 1000)
NOTHING = object()
"""No default."""
INVALID = "invalid"
ZERO: dict[str, Any] = {"whole": 0, "text": "", "flag": False}
KINDS = {
    "json": ("whole", "text", "flag", "money"),
    "avro": ("whole", "text", "flag", "money"),
    "protobuf": ("whole", "text", "flag"),
    "json_schema": ("whole", "text", "flag"),
}
DIGITS = {False: 8, True: 12}
"""Of an amount, before and after it was widened."""


@dataclass(frozen=True)
class F:
    """A field. `number` is what it is, for good; `names` are what it is called, the newest first."""

    number: int
    names: tuple[str, ...]
    kind: str
    nullable: bool = True
    default: Any = NOTHING
    is_wide: bool = False
    fields: tuple[F, ...] = ()

    @property
    def name(self) -> str:
        return self.names[0]


Fields = tuple[F, ...]


# ---- versions ------------------------------------------------------------------


@st.composite
def fields_of(draw: st.DrawFn, form: str, first: int, most: int, *, is_new: bool) -> Fields:
    """Fields of a first version, or new ones of a later: those need a default, or may be null."""
    found = []
    for number in range(first, first + draw(st.integers(0 if is_new else 1, most))):
        kind = draw(st.sampled_from(KINDS[form]))
        has_default = form in ("json", "avro") and draw(st.booleans())
        nullable = form == "json_schema" or draw(st.booleans())
        if is_new and form in ("json", "avro"):
            has_default = has_default or form == "avro" or not nullable
        default = draw(values(F(0, ("",), kind, nullable=False))) if has_default else NOTHING
        if form == "avro" and has_default and nullable and draw(st.booleans()):
            default = None
        found.append(F(number, (f"f{number}",), kind, nullable, default))
    return tuple(found)


@st.composite
def next_version(draw: st.DrawFn, form: str, fields: Fields, version: int, most: int = 3) -> Fields:
    """The fields after some of the changes that a version may make."""
    found: list[F] = []
    for field in fields:
        steps = ["keep", "widen", "null"] + (["remove"] if field.kind != "part" else [])
        steps += ["rename"] if form != "json_schema" else []
        match draw(st.sampled_from(steps)):
            case "remove":
                continue
            case "rename":
                field = replace(field, names=(f"f{field.number}_{version}", *field.names))
            case "widen":
                field = replace(field, is_wide=True)
            case "null" if field.kind != "part":
                field = replace(field, nullable=True)
        if field.kind == "part":
            field = replace(field, fields=draw(next_version(form, field.fields, version, 1)))
        found.append(field)
    first = version * 10 + (5 if most == 1 else 0)
    found += draw(fields_of(form, first, most, is_new=True))
    return tuple(draw(st.permutations(found))) or fields


@st.composite
def versions_of(draw: st.DrawFn, form: str) -> list[Fields]:
    """Three versions of a source."""
    inner = draw(fields_of(form, 5, 2, is_new=False))
    first = (*draw(fields_of(form, 0, 4, is_new=False)), F(9, ("f9",), "part", nullable=True, fields=inner))
    found: list[Fields] = [first]
    for version in (2, 3):
        found.append(draw(next_version(form, found[-1], version)))
    return found


def values(field: F) -> st.SearchStrategy[Any]:
    """What a producer may write as a field of its schema."""
    match field.kind:
        case "whole":
            size = 2**63 if field.is_wide else 2**31
            one: st.SearchStrategy[Any] = st.integers(-size, size - 1) | st.sampled_from([0, 7])
        case "text":
            one = st.sampled_from(["", "a", "ünï"])
        case "flag":
            one = st.booleans()
        case "money":
            top = 10 ** DIGITS[field.is_wide] - 1
            one = st.integers(-top, top).map(lambda cents: Decimal(cents).scaleb(-2))
        case _:
            return st.fixed_dictionaries({each.number: values(each) for each in field.fields})
    return one | st.none() if field.nullable else one


# ---- what the version in force reads -------------------------------------------


def expected(form: str, reader: Fields, writer: Fields, value: Mapping[int, Any]) -> Any:
    """The fields of an event by number; INVALID where the record is none."""
    wrote, found = {each.number: each for each in writer}, dict[int, Any]()
    for field in reader:
        by = wrote.get(field.number)
        if by is None or not (form == "protobuf" or set(by.names[:1]) & set(field.names)):
            found[field.number] = _absent(form, field)
        elif field.kind == "part":
            found[field.number] = expected(form, field.fields, by.fields, value[field.number])
        else:
            found[field.number] = _read(form, field, by, value[field.number])
        if found[field.number] is INVALID:
            return INVALID
    return found


def _read(form: str, field: F, by: F, value: Any) -> Any:
    if form == "protobuf" and (value is None or (not by.nullable and value == ZERO[field.kind])):
        return _absent(form, field)
    if value is None:
        return None if field.nullable else INVALID
    if field.kind == "money" and abs(value) >= Decimal(10) ** (DIGITS[field.is_wide] - 2):
        return INVALID
    if form == "json" and field.kind == "whole" and not field.is_wide and not -(2**31) <= value < 2**31:
        return INVALID
    return value


def _absent(form: str, field: F) -> Any:
    if field.kind == "part":
        return None if form != "avro" else INVALID  # its field has no default
    if form == "protobuf":
        return None if field.nullable else ZERO[field.kind]
    if field.default is NOTHING:
        return None if form == "json_schema" or (form == "json" and field.nullable) else INVALID
    return field.default


def by_number(reader: Fields, read: Mapping[str, Any] | None) -> Any:
    """What a reader gave, as the oracle has it."""
    if read is None:
        return None
    return {
        each.number: by_number(each.fields, read[each.name]) if each.kind == "part" else read[each.name]
        for each in reader
    }


# ---- declarations and records --------------------------------------------------


def declared(form: str, fields: Fields, version: int) -> Source:
    if form == "json":
        ddl = ", ".join(["event_id string", "event_time timestamp", *(_ddl(each, " ") for each in fields)])
        return Source("shop", fields=ddl, aliases=dict(_aliases(fields, "")), version=version)
    return Source("shop", format=form, reader_schema=schema_of(form, fields), version=version)


def schema_of(form: str, fields: Fields, namespace: str = "") -> str:
    if form == "avro":
        roles = [
            {"name": "event_id", "type": ["null", "string"], "default": None},
            {
                "name": "event_time",
                "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}],
                "default": None,
            },
        ]
        schema = {"type": "record", "name": "Order", "fields": [*roles, *map(_avro_field, fields)]}
        return json.dumps({**schema, "namespace": namespace} if namespace else schema)
    if form == "protobuf":
        return (
            'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message Order { '
            f"optional string event_id = 101; google.protobuf.Timestamp event_time = 102; {_proto_fields(fields)} }}"
        )
    properties = {
        "event_id": {"type": "string"}, "event_time": {"type": "string", "format": "date-time"},
        **{each.name: _json_schema(each) for each in fields},
    }  # fmt: skip
    return json.dumps({"type": "object", "properties": properties})


def _ddl(field: F, between: str) -> str:
    if field.kind == "part":
        return f"{field.name}{between}struct<{', '.join(_ddl(each, ': ') for each in field.fields)}>"
    digits = DIGITS[field.is_wide]
    kinds = {"text": "string", "flag": "boolean", "money": f"decimal({digits},2)"}
    kind = kinds.get(field.kind) or ("bigint" if field.is_wide else "int")
    default = f"'{field.default}'" if field.kind == "text" else str(field.default).lower()
    return (
        f"{field.name}{between}{kind}{'' if field.nullable else ' NOT NULL'}"
        f"{'' if field.default is NOTHING else f' DEFAULT {default}'}"
    )


def _aliases(fields: Fields, above: str) -> list[tuple[str, tuple[str, ...]]]:
    own = [(f"{above}{each.name}", each.names[1:]) for each in fields if each.names[1:]]
    return own + [pair for each in fields for pair in _aliases(each.fields, f"{above}{each.name}.")]


def _avro_field(field: F) -> dict[str, Any]:
    if field.kind == "part":
        type_: Any = {"type": "record", "name": "Part", "fields": [_avro_field(each) for each in field.fields]}
    elif field.kind == "money":
        type_ = {"type": "bytes", "logicalType": "decimal", "precision": DIGITS[field.is_wide], "scale": 2}
    else:
        type_ = {"text": "string", "flag": "boolean"}.get(field.kind) or ("long" if field.is_wide else "int")
    made: dict[str, Any] = {"name": field.name, "aliases": list(field.names[1:])}
    if field.nullable:
        type_ = ["null", type_] if field.default in (None, NOTHING) else [type_, "null"]
    if field.default is not NOTHING:
        made["default"] = _avro_default(field.default) if field.kind == "money" else field.default
    return {**made, "type": type_}


def _avro_default(value: Decimal | None) -> str | None:
    if value is None:
        return None
    return int(value.scaleb(2)).to_bytes(8, "big", signed=True).decode("latin-1")


def _proto_fields(fields: Fields) -> str:
    return " ".join(_proto_field(each) for each in fields)


def _proto_field(field: F) -> str:
    if field.kind == "part":
        return f"message Part {{ {_proto_fields(field.fields)} }} Part {field.name} = {field.number + 1};"
    kind = {"text": "string", "flag": "bool"}.get(field.kind) or ("int64" if field.is_wide else "int32")
    return f"{'optional ' if field.nullable else ''}{kind} {field.name} = {field.number + 1};"


def _json_schema(field: F) -> dict[str, Any]:
    if field.kind == "part":
        return {"type": "object", "properties": {each.name: _json_schema(each) for each in field.fields}}
    return {"type": {"whole": "integer", "text": "string", "flag": "boolean"}[field.kind]}


def named(fields: Fields, value: Mapping[int, Any], *, with_null: bool = True) -> dict[str, Any]:
    """A record's value by the names that its writer has."""
    found = {}
    for each in fields:
        part = value[each.number]
        if part is not None or with_null:
            found[each.name] = named(each.fields, part, with_null=with_null) if each.kind == "part" else part
    return found


def encoded(form: str, schema: str, fields: Fields, value: Mapping[int, Any], event_id: str) -> bytes:
    if form in ("json", "json_schema"):
        event = {"event_id": event_id, "event_time": AT.isoformat(), **named(fields, value)}
        return json.dumps(event, default=str).encode()
    if form == "avro":
        file = io.BytesIO()
        event = {"event_id": event_id, "event_time": AT, **named(fields, value)}
        fastavro.schemaless_writer(file, fastavro.parse_schema(json.loads(schema)), event)
        return file.getvalue()
    message = message_factory.GetMessageClass(pool_of(compiled(schema)).FindMessageTypeByName("Order"))
    event = {"event_id": event_id, "event_time": AT, **named(fields, value, with_null=False)}
    return bytes(message(**event).SerializeToString())


@dataclass(frozen=True)
class Written:
    """A record, and what its writer meant."""

    record: RawRecord
    version: int
    """Of the source that its writer knew, from 0."""
    by: Fields
    value: Mapping[int, Any]


@st.composite
def written_records(
    draw: st.DrawFn, form: str, versions: Sequence[Fields]
) -> tuple[dict[bytes, WriterSchema], list[Written]]:
    """Records of producers that have any of the versions, in any order, framed before the record or in a header."""
    writers, found = dict[bytes, WriterSchema](), list[Written]()
    for offset in range(draw(st.integers(4, 12))):
        version = draw(st.integers(0, len(versions) - 1))
        fields = versions[version]
        schema = schema_of(form, fields, draw(st.sampled_from(["", "shop"]))) if form != "json" else ""
        value = draw(st.fixed_dictionaries({each.number: values(each) for each in fields}))
        data, headers = encoded(form, schema, fields, value, f"e{offset}"), ()
        if form != "json":
            more, number = b"\0" if form == "protobuf" else b"", 2 * version + schema.count('"shop"')
            if draw(st.booleans()):
                frame = GUID_BYTE + UUID(int=number).bytes
                headers = ((HEADER, frame + more),)
            else:
                frame = frame_of_id(number)
                data = frame + more + data
            if form != "json_schema":
                writers[frame] = WriterSchema(form.upper(), schema)
        found.append(Written(RawRecord(0, offset, AT_MS, data, headers), version, fields, value))
    return writers, found


# ---- laws ----------------------------------------------------------------------


def read(reader: RecordReader, fields: Fields, written: Written) -> Any:
    try:
        found = reader.read(written.record)
    except InvalidEvent:
        return INVALID
    assert (found["event_id"], found["event_time"]) == (f"e{written.record.offset}", AT)
    return by_number(fields, found)


def check_chain(form: str, data: st.DataObject) -> None:
    versions = data.draw(versions_of(form), label="versions")
    sources = [declared(form, fields, number) for number, fields in enumerate(versions, start=1)]
    for number in (1, 2):
        found = evolution(sources[number - 1], sources[number], sources[: number - 1])
        assert found.refused == ()
        meanings = [{**each.meaning, "version": 0} for each in sources[number - 1 : number + 1]]
        assert bool(found.changes) == (meanings[0] != meanings[1]), "whatever is read otherwise is named"
    writers, records = data.draw(written_records(form, versions), label="records")
    readers = [RecordReader(source, writers) for source in sources]
    for written in records:
        results = [read(reader, fields, written) for reader, fields in zip(readers, versions, strict=True)]
        assert results == [expected(form, fields, written.by, written.value) for fields in versions]
        for before, after in ((0, 1), (1, 2), (0, 2)):
            # What a version does not know of a later writer's record, it does not judge.
            if results[before] is not INVALID and written.version <= before:
                assert results[after] is not INVALID, "what was valid stays valid"
                check_kept(form, versions[before], versions[after], results[before], results[after], written)


def check_kept(form: str, old: Fields, new: Fields, before: Any, after: Any, written: Written) -> None:
    """What was read of a field is read of it again, unless nobody wrote it: its default may be another one."""
    wrote = {each.number: written.value[each.number] for each in written.by}
    there = {each.number: each for each in old}
    for field in new:
        if field.number in there and field.kind != "part" and field.number in wrote:
            was_absent = form == "protobuf" and wrote[field.number] in (None, ZERO[field.kind])
            is_by_name = before[field.number] == wrote[field.number]
            assert was_absent or not is_by_name or after[field.number] == before[field.number]


@pytest.mark.parametrize("form", ["json", "avro", "json_schema"])
def test_version_in_force_reads_the_records_of_all_writers_as_the_oracle_does(form: str) -> None:
    @settings(max_examples=30, deadline=None)
    @given(st.data())
    def law(data: st.DataObject) -> None:
        check_chain(form, data)

    law()


@pytest.mark.process
@settings(max_examples=5, deadline=None)  # each example starts protoc some times
@given(st.data())
def test_version_in_force_reads_the_protobuf_records_of_all_writers_as_the_oracle_does(data: st.DataObject) -> None:
    check_chain("protobuf", data)
