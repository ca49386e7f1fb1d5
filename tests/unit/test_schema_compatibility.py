"""Compatibility as a table of changes, and what is special about each kind of schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor, FileDescriptor
from google.protobuf.message_factory import GetMessageClass

from tests.unit.compatibility_histories import HISTORIES, History
from tests.unit.compatibility_rules import ROWS, Row
from views.schemas import (
    AVRO,
    JSON,
    PROTOBUF,
    NamedSchema,
    ProtobufSchema,
    check,
    incompatibilities,
    json_comparison,
    parse,
)


def _is_slow(row: Row) -> bool:
    """Whether it needs a process: protoc, or a comparison with references."""
    return row.type == PROTOBUF or "$ref" in row.old + row.new


def _rows() -> list[object]:
    return [
        pytest.param(row, id=f"{row.type}-{row.change}", marks=[pytest.mark.process] if _is_slow(row) else [])
        for row in ROWS
    ]


@pytest.mark.parametrize("row", _rows())
def test_change_is_compatible_as_the_rules_say(row: Row) -> None:
    old, new = parse(row.type, row.old), parse(row.type, row.new)
    for level, compatible in row.verdicts():
        problems = check(level, new, [old])
        assert (not problems) == compatible, (level, problems)
    if isinstance(old, ProtobufSchema) and isinstance(new, ProtobufSchema):
        for reader, writer, compatible in ((new, old, row.backward), (old, new, row.forward)):
            if compatible:
                _assert_values_survive(reader.descriptor, writer.descriptor)


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(
            each, id=f"{each.type}-{each.change}", marks=[pytest.mark.process] if each.type == PROTOBUF else []
        )
        for each in HISTORIES
    ],
)
def test_third_version_may_follow_as_the_rules_say(history: History) -> None:
    *older, new = (parse(history.type, text) for text in history.versions)
    for level, compatible in history.verdicts():
        problems = check(level, new, older)
        assert (not problems) == compatible, (level, problems)


def _assert_values_survive(reader: FileDescriptor, writer: FileDescriptor) -> None:
    """A message that the writer wrote is complete for the reader, and the fields that both have are set."""
    for name, written in writer.message_types_by_name.items():
        read = reader.message_types_by_name[name]
        complete = GetMessageClass(written)()
        for field in written.fields:
            message = GetMessageClass(written)()
            for target in (message, complete):
                _set(target, field)
            seen = GetMessageClass(read)()
            seen.MergeFromString(message.SerializePartialToString())
            if field.number in read.fields_by_number:
                assert [known.number for known, _ in seen.ListFields()] == [field.number], (name, field.name)
        seen = GetMessageClass(read)()
        seen.MergeFromString(complete.SerializeToString())
        assert seen.IsInitialized()


def _set(message: Any, field: FieldDescriptor) -> None:
    """Give a field a value that is not its default."""
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        key = "1" if entry["key"].type == entry["key"].TYPE_STRING else 1
        if entry["value"].message_type is not None:
            value[key].SetInParent()
        else:
            value[key] = _plain(entry["value"])
    elif field.message_type is not None:
        value.add() if field.is_repeated else value.SetInParent()
    elif field.is_repeated:
        value.append(_plain(field))
    else:
        setattr(message, field.name, _plain(field))


def _plain(field: FieldDescriptor) -> object:
    return {field.TYPE_STRING: "1", field.TYPE_BYTES: b"1", field.TYPE_BOOL: True}.get(field.type, 1)


def test_table_has_rows_for_every_kind() -> None:
    for type in (AVRO, JSON, PROTOBUF):
        rows = [row for row in ROWS if row.type == type]
        assert len(rows) >= 50
        assert len({row.change for row in rows}) == len(rows)
        histories = [history for history in HISTORIES if history.type == type]
        assert len(histories) >= 10
        for direction in (0, 1):  # only a transitive level refuses it
            assert any(each.with_second[direction] and not each.with_first[direction] for each in histories)


@pytest.mark.process  # a comparison that is not small is done by a process
def test_json_that_is_not_small_is_compared_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_comparison, "SMALL_BYTES", 0)
    limit = NamedSchema("limit.json", '{"type": "number", "minimum": 1.10}')
    wide = parse(JSON, '{"properties": {"a": {"$ref": "limit.json"}}}', [limit])
    narrow = parse(JSON, '{"properties": {"a": {"allOf": [{"$ref": "limit.json"}, {"maximum": 1.5e3}]}}}', [limit])
    assert incompatibilities(wide, narrow) == []
    assert incompatibilities(narrow, wide) == [
        '#: the writer may have written values that the reader refuses: {"properties":{"a":{"exclusiveMinimum":1500,'
        '"type":"number"}},"required":["a"],"type":"object"}'
    ]


@pytest.mark.process
def test_json_that_cannot_be_compared_in_time_is_incompatible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_comparison, "DEADLINE_S", 1)
    choices = [
        {"if": {"required": [f"a{n}"]}, "then": {"required": [f"b{n}"]}, "else": {"required": [f"c{n}"]}}
        for n in range(40)
    ]
    hard = parse(JSON, json.dumps({"allOf": choices}))
    harder = parse(JSON, json.dumps({"allOf": choices, "maxProperties": 7}))
    assert "was not proven within 1 s" in incompatibilities(hard, harder)[0]


@pytest.mark.process
def test_json_whose_definitions_use_each_other_twice_cannot_stop_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 40 levels doubles what is compared."""
    monkeypatch.setattr(json_comparison, "DEADLINE_S", 1)

    def doubling(last: str) -> str:
        definitions: dict[str, Any] = {}
        for n in range(40):
            following = {"$ref": f"#/definitions/d{n + 1}"}
            definitions[f"d{n}"] = {"properties": {"a": following}, "patternProperties": {"b": following}}
        definitions["d40"] = {"type": last}
        return json.dumps({"definitions": definitions, "properties": {"x": {"$ref": "#/definitions/d0"}}})

    reader, writer = parse(JSON, doubling("integer")), parse(JSON, doubling("number"))
    assert "was not proven within 1 s" in incompatibilities(reader, writer)[0]


@pytest.mark.process
def test_json_that_is_recursive_in_ways_that_are_not_followed_is_not_proven() -> None:
    tree = (
        '{"properties": {"left": {"$ref": "#"}, "v": {"type": "TYPE"}}, "anyOf": [{"$ref": "#/properties/left"}, {}]}'
    )
    narrow, wide = (parse(JSON, tree.replace("TYPE", type)) for type in ("integer", "number"))
    assert "cannot be proven" in incompatibilities(wide, narrow)[0]
    assert incompatibilities(wide, wide) == []


@pytest.mark.process
def test_json_that_refers_to_nothing_but_itself_is_compared() -> None:
    loop, text = parse(JSON, '{"$ref": "#"}'), parse(JSON, '{"type": "string"}')
    assert incompatibilities(text, loop) != []


def test_avro_messages_name_the_path_and_the_types() -> None:
    inner = {"type": "record", "name": "x.Item", "fields": [{"name": "n", "type": {"type": "array", "items": "int"}}]}
    old = {"type": "record", "name": "x.Order", "fields": [{"name": "items", "type": {"type": "map", "values": inner}}]}
    new = json.loads(json.dumps(old).replace('"items": "int"', '"items": "string"'))
    assert incompatibilities(parse(AVRO, json.dumps(new)), parse(AVRO, json.dumps(old))) == [
        "x.Item.n[]: the reader's string does not read the writer's int"
    ]


def test_avro_comparison_of_many_unions_ends() -> None:
    records = [f'{{"type":"record","name":"R{n}","fields":[{{"name":"f","type":"int"}}]}}' for n in range(1500)]
    other = parse(AVRO, "[" + ",".join(records).replace('"R', '"S') + "]")
    assert "comparisons" in incompatibilities(parse(AVRO, "[" + ",".join(records) + "]"), other)[0]


def test_avro_messages_do_not_multiply_where_types_are_shared() -> None:
    """Each record uses the next one twice: a list of all paths would have 33 million entries."""

    def chain(last: str) -> str:
        type = last
        for n in range(25):
            second = f'"R{n - 1}"' if n else last
            fields = f'[{{"name":"a","type":{type}}},{{"name":"b","type":{second}}}]'
            type = f'{{"type":"record","name":"R{n}","fields":{fields}}}'
        return type

    problems = incompatibilities(parse(AVRO, chain('"int"')), parse(AVRO, chain('"string"')))
    assert len(problems) <= 100


@pytest.mark.process
def test_protobuf_messages_name_the_field_and_the_types() -> None:
    old = parse(PROTOBUF, 'syntax = "proto3"; package p; message M { string a = 1; int32 b = 2; }')
    new = parse(PROTOBUF, 'syntax = "proto3"; package p; message M { int32 a = 1; repeated int32 b = 2; }')
    assert incompatibilities(new, old) == [
        "M.a: field 1 is an int32, and was a string",
        "M.b: field 2 is repeated, and was singular: numbers are encoded otherwise",
    ]
