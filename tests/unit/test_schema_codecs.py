"""What the codecs of REST Proxy refuse: schemas and values that would take seconds, or end the process."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from infra.rest.problems import Problem
from infra.threads import Threads
from master_dataset.collector.kafka_rest.embedded_schemas import EmbeddedSchemas, SchemaChoice
from master_dataset.collector.kafka_rest.schema_codecs import MAX_WORK, JsonCodec, Misfit, codec_of
from master_dataset.collector.kafka_rest.v2_consume import _presenter
from master_dataset.collector.kafka_rest.v2_produce import Encode, encode_records
from master_dataset.collector.kafka_rest.v3_data import V3Data, V3Encoder
from master_dataset.registry.records import SchemaVersion
from master_dataset.registry.schemas import Schema
from views.formats.avro_schema import SchemaError
from views.formats.framing import frame_of_id
from views.schemas import JsonSchema, NamedSchema
from views.schemas.json_extent import MAX_STEPS, steps


def doubling(levels: int, word: str = "anyOf") -> dict[str, Any]:
    found: dict[str, Any] = {
        f"d{number}": {word: [{"$ref": f"#/definitions/d{number + 1}"}] * 2} for number in range(levels)
    }
    return {**found, f"d{levels}": {"type": "integer"}}


def codec(schema: Any) -> JsonCodec:
    found = codec_of("JSON", json.dumps(schema), ())
    assert isinstance(found, JsonCodec)
    return found


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "R"]}]},
        {"type": "record", "name": "X", "fields": [{"name": "x", "type": "X"}]},
    ],
)
def test_avro_type_that_contains_itself_cannot_be_used(schema: Any) -> None:
    """Its bytes would say how deep the decoder recurses, in C."""
    with pytest.raises(SchemaError, match="which contains itself"):
        codec_of("AVRO", json.dumps(schema), ())


@pytest.mark.parametrize("word", ["allOf", "anyOf", "oneOf"])
def test_json_schema_that_doubles_its_work_too_often_cannot_be_used(word: str) -> None:
    with pytest.raises(ValueError, match="it evaluates 100,000 schemas or more for one part of a value"):
        codec({"definitions": doubling(18, word), "$ref": "#/definitions/d0"})


def test_value_that_is_too_large_for_its_schema_is_refused_before_it_is_looked_at() -> None:
    demanding = codec({"definitions": doubling(12), "items": {"$ref": "#/definitions/d0"}})
    assert demanding.encode([1]) == b"[1]"
    with pytest.raises(Misfit, match=r"it has 20001 bytes, and this schema takes \d{5} at most"):
        demanding.encode([1] * 10_000)
    assert codec({"items": {"type": "integer"}}).encode([1] * 100_000)


def test_why_a_value_does_not_fit_is_said_where_that_is_found_soon() -> None:
    assert 12 * steps_of({"definitions": doubling(12), "$ref": "#/definitions/d0"}) < MAX_WORK
    demanding = codec({"definitions": doubling(12), "$ref": "#/definitions/d0"})
    with pytest.raises(Misfit, match="it is not valid; it is too large to find out where"):
        demanding.encode("x" * 30)
    with pytest.raises(Misfit, match='"x" is not of type "integer"'):
        codec({"properties": {"a": {"type": "integer"}}}).encode({"a": "x"})


def steps_of(schema: Any, *references: tuple[str, Any]) -> int:
    return steps(JsonSchema(json.dumps(schema), [NamedSchema(n, json.dumps(each)) for n, each in references]).document)


DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"
THREE = {"anyOf": [True, True]}
OTHER_BASE = {"$id": "http://shop/a", "definitions": {"b": THREE}, "not": {"$ref": "#/definitions/b"}}
TREE = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, 1),
        ({"type": "integer"}, 1),
        (THREE, 3),
        ({"not": THREE, "if": THREE, "dependencies": {"a": THREE, "b": ["a"]}}, 11),
        ({"properties": {"a": THREE, "b": True}}, 4),
        ({"items": [THREE, True], "contains": THREE}, 7),
        ({"items": THREE}, 4),
        ({"$schema": DRAFT_2020, "prefixItems": [THREE, True], "items": THREE}, 7),
        ({"patternProperties": {"a": True, "b": True}}, 23),
        ({"definitions": {"a": THREE}}, 1),
        ({"definitions": {"a": THREE}, "$ref": "#/definitions/a", "anyOf": [True]}, 4),
        ({"$schema": DRAFT_2020, "$defs": {"a": THREE}, "$ref": "#/$defs/a", "anyOf": [True]}, 5),
        ({"$id": "http://shop/a.json", "definitions": {"a": THREE}, "anyOf": [{"$ref": "a.json#/definitions/a"}]}, 5),
        ({"definitions": {"a": OTHER_BASE}, "not": {"$ref": "http://shop/a"}}, 7),
        ({"$schema": DRAFT_2020, "$defs": {"a": {"$anchor": "x", **THREE}}, "not": {"$ref": "#x"}}, 5),
        (TREE, 5),
        ({"id": "no base", "definitions": {"a/b": THREE}, "not": {"$ref": "#/definitions/a~1b"}}, 5),
        ({"$schema": DRAFT_4, "id": "http://shop/a", "items": {"not": {}}, "not": {"$ref": "a#/items"}}, 6),
        ({"$id": "http://shop/a#", "items": [THREE], "not": {"$ref": "#/items/0"}}, 8),
        ({"$schema": DRAFT_2019, "$recursiveAnchor": True, "items": {"$recursiveRef": "#"}}, 5),
        ({"$schema": DRAFT_2020, "$dynamicAnchor": "x", "items": {"$dynamicRef": "#x"}}, 5),
        ({"definitions": doubling(10), "$ref": "#/definitions/d0"}, 4094),
        ({"definitions": doubling(60), "$ref": "#/definitions/d0"}, MAX_STEPS),
        ({"definitions": doubling(999), "$ref": "#/definitions/d0"}, MAX_STEPS),
    ],
)  # fmt: skip
def test_steps_of_a_json_schema(schema: Any, expected: int) -> None:
    assert steps_of(schema) == expected


def test_steps_go_on_in_the_documents_that_a_schema_refers_to() -> None:
    other = {"definitions": doubling(60), "allOf": [{"$ref": "#/definitions/d0"}]}
    assert steps_of({"not": {"$ref": "other.json"}}, ("other.json", other)) == MAX_STEPS


def presented(format: str, schema: Schema, payload: bytes) -> Any:
    """What a consumer of REST Proxy v2 gets for a record at offset 5."""
    registry = SimpleNamespace(state=SimpleNamespace(schema={7: schema}.get))
    schemas = EmbeddedSchemas(cast(Any, None), cast(Any, registry))
    message = SimpleNamespace(
        topic=lambda: "t", partition=lambda: 0, offset=lambda: 5, key=lambda: None,
        value=lambda: frame_of_id(7) + payload,
    )  # fmt: skip

    async def present() -> Any:
        return await asyncio.to_thread(_presenter(format, schemas), cast(Any, message))

    return asyncio.run(present())


LIST = {"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "R"]}]}


@pytest.mark.parametrize(
    ("format", "schema", "payload", "why"),
    [
        ("avro", Schema(json.dumps(LIST)), b"\x02\x02\x00", "Schema 7 cannot be used: it has the type 'R', which"),
        ("avro", Schema("{"), b"\x02", "Schema 7 cannot be used: the schema is not JSON"),
        ("avro", Schema('"int"'), b"\x02\x02", "bytes follow it"),
        ("jsonschema", Schema('"int"'), b"\x02", "schema 7 is of the type AVRO"),
    ],
)
def test_record_that_cannot_be_decoded_is_named_with_its_offset(
    format: str, schema: Schema, payload: bytes, why: str
) -> None:
    """So that a client can go past it, also where the schema is what is wrong."""
    with pytest.raises(Problem) as problem:
        presented(format, schema, payload)
    assert (problem.value.status, problem.value.kind, problem.value.more["offset"]) == (422, "undecodable", 5)
    assert why in str(problem.value)


def test_record_is_presented() -> None:
    assert presented("avro", Schema('"int"'), b"\x02")["value"] == 1


def test_data_of_a_schema_is_never_encoded_on_the_event_loop() -> None:
    """However small a body is, its schema says how long it takes."""
    seen = []

    def encode(value: Any, where: str) -> bytes:
        del value, where
        seen.append(threading.get_ident())
        return b"x"

    async def produce() -> int:
        threads = Threads("tests", 1)
        schema = SchemaVersion("s", 1, 1, Schema("{}", "JSON"), False)
        schemas = SimpleNamespace(writer=AsyncMock(return_value=SimpleNamespace(version=schema, encode=encode)))
        collector: Any = SimpleNamespace(parsing=threads)
        encoder = V3Encoder(collector, cast(EmbeddedSchemas, schemas), cast(Any, None), cast(Any, None))
        data = V3Data("JSONSCHEMA", 1, SchemaChoice("JSON", "t", "value", text="{}"))
        assert (await encoder.encode(data, "value")).data == b"x"
        encoders: dict[str, Encode] = {"key": encode, "value": encode}
        await encode_records(threads, b"{}", "jsonschema", [{"value": 1}], "t", None, encoders)
        return threading.get_ident()

    on_loop = asyncio.run(produce())
    assert len(seen) == 3
    assert on_loop not in seen


@pytest.mark.process
def test_protobuf_value_that_has_no_json_is_undecodable() -> None:
    text = 'syntax = "proto3"; import "google/protobuf/any.proto"; message M { google.protobuf.Any a = 1; }'
    any_of_a_stranger = b"\x0a\x0d\x0a\x0bx/y.Unknown"
    with pytest.raises(ValueError, match=r"it is not what its schema says: .*y\.Unknown"):
        codec_of("PROTOBUF", text, ()).decode(b"\x00" + any_of_a_stranger)
