"""Protobuf types that JSON has no equal of: bytes, durations, any JSON, and maps whose keys are no texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format, message_factory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from views.formats.protobuf_decoding import ProtobufDecoder, writers_of
from views.formats.protobuf_evolution import differences, meaning_of
from views.formats.protobuf_schema import compiled, pool_of, protobuf_reader
from views.formats.undecodable import Undecodable
from views.formats.writer_schemas import WriterSchema

pytestmark = pytest.mark.process  # protoc

HEAD = "".join(f'import "google/protobuf/{each}.proto"; ' for each in ("duration", "struct", "wrappers"))
SCHEMA = f"""syntax = "proto3"; {HEAD} message M {{
  bytes data = 1; repeated bytes more = 2; map<int32, string> names = 3; map<bool, int64> counts = 4;
  google.protobuf.Duration took = 5; google.protobuf.Struct labels = 6; google.protobuf.Value any = 7;
  google.protobuf.ListValue list = 8; google.protobuf.BytesValue wrapped = 9; map<uint64, bytes> parts = 10;
  repeated google.protobuf.Duration laps = 11; optional bytes maybe = 12;
}}"""
READER = protobuf_reader(SCHEMA)
DECODER = ProtobufDecoder(READER, {}, is_framed=False)
CLASS = message_factory.GetMessageClass(pool_of(compiled(SCHEMA)).FindMessageTypeByName("M"))
NOTHING: dict[str, Any] = {
    "data": "", "more": [], "names": {}, "counts": {}, "took": None, "labels": None, "any": None, "list": None,
    "wrapped": None, "parts": {}, "laps": [], "maybe": None,
}  # fmt: skip


def decoded(text: str) -> dict[str, Any]:
    """The fields of a message that is given as JSON."""
    return DECODER.decode(json_format.Parse(text, CLASS()).SerializeToString())


def test_the_types_of_the_fields() -> None:
    assert [field.type.ddl() for field in READER.fields] == [
        "string", "array<string>", "map<string,string>", "map<string,bigint>", "bigint", "string", "string", "string",
        "string", "map<string,string>", "array<bigint>", "string",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sent", "fields"),
    [
        ("{}", {}),
        ('{"data": "/+8=", "more": ["", "AA=="], "wrapped": "", "maybe": ""}',
         {"data": "/+8=", "more": ["", "AA=="], "wrapped": "", "maybe": ""}),
        ('{"names": {"-7": "a", "0": "b"}, "counts": {"true": 1, "false": 2}}',
         {"names": {"-7": "a", "0": "b"}, "counts": {"true": 1, "false": 2}}),
        ('{"parts": {"18446744073709551615": "AA=="}}', {"parts": {"18446744073709551615": "AA=="}}),
        ('{"took": "3.000001999s", "laps": ["0s", "-3.000001999s", "-0.5s"]}',
         {"took": 3_000_001, "laps": [0, -3_000_001, -500_000]}),
        ('{"took": "315576000000s"}', {"took": 315_576_000_000_000_000}),
        ('{"labels": {"b": [1, 2.5, null, true, {"x": {}}], "a": "\\u00fc"}}',
         {"labels": '{"a":"ü","b":[1,2.5,null,true,{"x":{}}]}'}),
        ('{"labels": {}, "any": 7, "list": []}', {"labels": "{}", "any": "7", "list": "[]"}),
        ('{"any": null}', {"any": None}),
        ('{"any": "text"}', {"any": '"text"'}),
        ('{"any": 1e300}', {"any": "1e+300"}),
        ('{"any": 9007199254740992}', {"any": "9007199254740992"}),
    ],
)  # fmt: skip
def test_values_are_as_in_the_json_of_protobuf(sent: str, fields: dict[str, Any]) -> None:
    assert decoded(sent) == {**NOTHING, **fields}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"took": {"seconds": 315_576_000_001}}, "a duration is not one of at most 10,000 years"),
        ({"took": {"seconds": 1, "nanos": -1}}, "a duration is not one of at most 10,000 years"),
        ({"took": {"nanos": 1_000_000_000}}, "a duration is not one of at most 10,000 years"),
        ({"any": {"number_value": float("nan")}}, "a number is not finite"),
        ({"list": {"values": [{"number_value": float("inf")}]}}, "a number is not finite"),
    ],
)
def test_what_json_could_not_say_makes_a_record_invalid(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(Undecodable, match=why):
        DECODER.decode(CLASS(**fields).SerializeToString())


SCALARS = st.none() | st.booleans() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.floats(
    allow_nan=False, allow_infinity=False
)  # fmt: skip
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("aé", max_size=3), inner, max_size=3)
)


@given(JSON)
@settings(suppress_health_check=list(HealthCheck))
def test_any_json_is_the_text_of_itself(value: Any) -> None:
    found = decoded(json.dumps({"any": value}))["any"]
    assert value is None if found is None else json.loads(found) == value


def test_a_writer_whose_map_has_other_keys_is_not_read() -> None:
    frame = b"\x00\x00\x00\x00\x01"
    other = 'syntax = "proto3"; message M { map<string, string> names = 3; }'
    found = writers_of(READER, {frame: WriterSchema("PROTOBUF", other)})[frame]
    assert isinstance(found, dict)
    assert found[0,] == "names.key is string, and this source reads int32"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("map<int32, string> a = 1;", "map<int64, string> a = 1;", []),
        ("map<int32, string> a = 1;", "map<string, string> a = 1;", ["map by int64 of string and is map of string"]),
        ("string a = 1;", "bytes a = 1;", ["was string and is bytes"]),
    ],
)
def test_a_version_that_reads_values_otherwise_is_refused(old: str, new: str, said: list[str]) -> None:
    meanings = [meaning_of(protobuf_reader(f'syntax = "proto3"; message M {{ {each} }}')) for each in (old, new)]
    found = list(differences(*meanings, is_framed=True))
    assert len(found) == len(said)
    for (is_allowed, text), expected in zip(found, said, strict=True):
        assert not is_allowed
        assert expected in text


def test_the_meaning_of_maps_by_texts_is_what_earlier_versions_have_written() -> None:
    meaning = meaning_of(protobuf_reader('syntax = "proto3"; message M { map<string, int32> a = 1; }'))
    assert meaning["fields"]["1"] == {"name": "a", "many": "map", "type": "int64"}
