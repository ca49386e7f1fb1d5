"""What schema texts mean: one canonical text for each, references by name, and clear refusals."""

from __future__ import annotations

import json

import pytest

from views.schemas import (
    AVRO,
    JSON,
    AvroSchema,
    InvalidSchema,
    JsonSchema,
    NamedSchema,
    check,
    incompatibilities,
    parse,
)

ORDER = {
    "fields": [
        {"type": "string", "name": "id", "doc": 'said "twice"'},
        {"name": "price", "default": 1e10, "type": {"logicalType": "x", "type": "double", "a": 1}},
        {"name": "next", "type": ["null", "com.shop.Order"], "default": None, "order": "ignore"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["A", "B"], "default": "A"}},
        {"name": "digest", "type": {"type": "fixed", "size": 4, "name": "org.Digest", "namespace": "not.used"}},
    ],
    "name": "Order",
    "aliases": ["Sale", "old.Sale"],
    "type": "record",
    "namespace": "com.shop",
    "owner": "shop",
}
ORDER_TEXT = (
    '{"type":"record","name":"Order","namespace":"com.shop","fields":['
    '{"name":"id","type":"string","doc":"said \\"twice\\""},'
    '{"name":"price","type":{"type":"double","logicalType":"x","a":1},"default":1.0E10},'
    '{"name":"next","type":["null","Order"],"default":null,"order":"ignore"},'
    '{"name":"state","type":{"type":"enum","name":"State","symbols":["A","B"],"default":"A"}},'
    '{"name":"digest","type":{"type":"fixed","name":"Digest","namespace":"org","size":4}}'
    '],"owner":"shop","aliases":["Sale","old.Sale"]}'
)


def test_avro_text_is_written_as_java_writes_it() -> None:
    assert parse(AVRO, json.dumps(ORDER, indent=3)).canonical == ORDER_TEXT
    assert parse(AVRO, ORDER_TEXT).canonical == ORDER_TEXT


@pytest.mark.parametrize("text", ['"long"', "long", '{"type": "long"}', ' {"type":"long","doc":"dropped"} '])
def test_avro_primitives_have_one_text(text: str) -> None:
    assert parse(AVRO, text).canonical == '"long"'


def test_avro_references_are_types_by_full_name() -> None:
    address = NamedSchema(
        "a.Address", '{"type":"record","name":"a.Address","fields":[{"name":"city","type":"string"}]}'
    )
    fields = [{"name": "home", "type": "Address"}, {"name": "work", "type": "a.Address"}]
    text = json.dumps({"type": "record", "name": "a.Person", "fields": fields})
    person = parse(AVRO, text, [address])
    assert isinstance(person, AvroSchema)
    assert person.canonical == (
        '{"type":"record","name":"Person","namespace":"a","fields":'
        '[{"name":"home","type":"Address"},{"name":"work","type":"Address"}]}'
    )
    assert json.loads(person.formatted("resolved"))["fields"][0]["type"]["fields"] == [
        {"name": "city", "type": "string"}
    ]
    assert parse(AVRO, person.resolved).canonical == person.resolved
    with pytest.raises(InvalidSchema, match=r"a\.Person\.home: there is no type 'a\.Address'"):
        parse(AVRO, text)


def test_avro_normalized_text_does_not_depend_on_the_order_of_properties() -> None:
    one = parse(AVRO, '{"type":"enum","name":"E","symbols":["A"],"b":{"y":1,"x":2},"a":1,"aliases":["Z","Y"]}')
    other = parse(AVRO, '{"a":1,"aliases":["Y","Z"],"type":"enum","name":"E","symbols":["A"],"b":{"x":2,"y":1}}')
    assert one.canonical != other.canonical
    assert one.normalized == other.normalized


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON: .* line 1, column 2"),
        ("[" * 100_000, "nested more than"),
        ("7", "7 is no type"),
        ('"strin"', "no type 'strin'"),
        ('{"name":"A"}', "without 'type'"),
        ('{"type":{"type":"string"}}', "holds a whole type"),
        ('{"type":"record","name":"A"}', "A: a record needs 'fields'"),
        ('{"type":"record","fields":[]}', "lacks 'name'"),
        ('{"type":"record","name":"A-B","fields":[]}', '"A-B" is no name'),
        ('{"type":"record","name":"A","namespace":"x.7","fields":[]}', '"7" is no name'),
        ('{"type":"record","name":"A","fields":[{"name":"f"}]}', "A.f: the field lacks 'type'"),
        (
            '{"type":"record","name":"A","fields":[{"name":"f","type":"int"},{"name":"f","type":"int"}]}',
            "A.f: .* twice",
        ),
        (
            '{"type":"record","name":"A","fields":[{"name":"f","type":"int","default":"1"}]}',
            'A.f: the default "1" is no int',
        ),
        ('{"type":"record","name":"A","fields":[{"name":"f","type":"int","default":2147483648}]}', "is no int"),
        ('{"type":"record","name":"A","fields":[{"name":"f","type":"int","order":"up"}]}', "'order' is \"up\""),
        (
            '{"type":"record","name":"A","fields":[{"name":"f","type":{"type":"fixed","name":"A","size":1}}]}',
            "second time",
        ),
        ('{"type":"enum","name":"E","symbols":["A","A"]}', "a symbol twice"),
        ('{"type":"enum","name":"E","symbols":["A"],"default":"B"}', 'default "B" is none of the symbols'),
        ('{"type":"fixed","name":"F","size":-1}', "not -1"),
        ('{"type":"array"}', "lacks 'items'"),
        ('["int","int"]', "holds int twice"),
        ('["int",["string"]]', "a union directly in a union"),
        ('{"type":"string","x":1e400}', "larger than a double"),
        ('"\\ud800"', "half a surrogate pair"),
        ('{"type":"string","doc":"' + "x" * 1_000_000 + '"}', "1000000 is the most"),
    ],
)
def test_avro_that_is_no_schema_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidSchema, match=message):
        parse(AVRO, text)


def test_json_text_keeps_order_and_digits() -> None:
    text = '{ "type": "number", "minimum": 1.50, "multipleOf": 1e2, "title": "\\u00e9\\u001f" }'
    assert parse(JSON, text).canonical == '{"type":"number","minimum":1.50,"multipleOf":1E+2,"title":"é\\u001F"}'
    assert parse(JSON, text).normalized.startswith('{"minimum":1.50,"multipleOf":1E+2,"title"')


@pytest.mark.process
def test_json_references_are_found_by_name() -> None:
    user = NamedSchema(
        "user.json", '{"type":"object","required":["id"],"properties":{"id":{"$ref":"ids.json#/definitions/id"}}}'
    )
    ids = NamedSchema("ids.json", '{"definitions":{"id":{"type":"integer"}}}')
    for root in ("{}", '{"$id":"http://example.com/schemas/order.json"}'):
        text = json.dumps(json.loads(root) | {"properties": {"user": {"$ref": "user.json"}}})
        schema = parse(JSON, text, [ids, user])
        assert isinstance(schema, JsonSchema)
        assert schema.validator.is_valid({"user": {"id": 1}})
        assert not schema.validator.is_valid({"user": {"id": "1"}})
        assert not schema.validator.is_valid({"user": {}})
        assert incompatibilities(parse(JSON, "{}"), schema) == []
        assert incompatibilities(schema, parse(JSON, "{}")) != []
        with pytest.raises(InvalidSchema, match=r"refers to '.*user\.json', which is not among its references"):
            parse(JSON, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "neither an object nor true nor false"),
        ('{"type":"strin"}', "#/type: this is no JSON schema of draft 7"),
        ('{"$schema":"https://json-schema.org/draft/2020-12/schema","items":[{}]}', "#/items: .* draft 2020-12"),
        ('{"$ref":"#/definitions/none"}', "'/definitions/none' does not exist"),
        ('{"$ref":"http://127.0.0.1:9/a.json"}', "nothing is fetched"),
        ('{"$ref":"file:///etc/hostname"}', "nothing is fetched"),
        ('{"properties":{"a":{"pattern":"("}}}', "#/properties/a/pattern"),
        ('{"minimum":NaN}', "NaN is no number"),
        ('{"not":' * 101 + "{}" + "}" * 101, "nested more than 100"),
    ],
)
def test_json_that_is_no_schema_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidSchema, match=message):
        parse(JSON, text)


def test_json_without_a_dialect_is_draft_7() -> None:
    text = '"items":[{"type":"string"}],"exclusiveMinimum":1}'
    assert parse(JSON, "{" + text).draft == 7
    with pytest.raises(InvalidSchema, match="draft 4"):
        parse(JSON, '{"$schema":"http://json-schema.org/draft-04/schema#",' + text)


def test_levels_say_who_reads_whom_and_how_far_back() -> None:
    first, second, third = (parse(AVRO, text) for text in ('"int"', '"long"', '["string","long"]'))
    assert check("NONE", parse(AVRO, '"boolean"'), [first, second]) == []
    assert check("BACKWARD", second, [first]) == []
    assert "does not read the writer's long" in check("BACKWARD", first, [second])[0]
    assert check("FORWARD", first, [second]) == []
    assert check("FORWARD", second, [first])
    assert check("FULL", second, [first])
    assert check("BACKWARD", parse(AVRO, '"double"'), [parse(AVRO, '"boolean"'), second]) == []
    assert check("BACKWARD_TRANSITIVE", parse(AVRO, '"double"'), [parse(AVRO, '"boolean"'), second])
    assert check("FULL_TRANSITIVE", third, []) == []
    with pytest.raises(InvalidSchema, match="no level"):
        check("SIDEWAYS", first, [])
    assert check("BACKWARD", first, [parse(JSON, "{}")]) == [
        "the new schema does not read an older one: the reader is of type AVRO, and the writer of type JSON"
    ]
