"""Which type a file of `tidemark registry register` has, by its content, and how references are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidemark.commands.registry import RegistryRefused, app, type_of
from views.schemas import InvalidSchema, parse


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "string"}, "JSON"),
        ({"type": "object", "properties": {"id": {"type": "integer"}}}, "JSON"),
        ({"type": ["object", "null"]}, "JSON"),
        ({"$ref": "other.json"}, "JSON"),
        ({"title": "a", "anyOf": [True]}, "JSON"),
        ({}, "JSON"),
        (True, "JSON"),
        ({"type": "record", "name": "User", "fields": [{"name": "id", "type": "long"}]}, "AVRO"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "AVRO"),
        ({"type": "map", "values": "string"}, "AVRO"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "AVRO"),
        ("string", "AVRO"),
        (["null", "string"], "AVRO"),
        ({"type": "array", "items": {"type": "string"}}, None),
        ({"type": "string"}, None),
    ],
)
def test_the_type_of_a_schema_is_found_in_its_content(content: Any, expected: str | None) -> None:
    text = json.dumps(content)
    assert type_of(text) == expected
    if expected is not None and "$ref" not in text:
        assert parse(expected, text).type == expected


def test_what_may_be_either_is_a_schema_of_both_types() -> None:
    for text in ('{"type": "string"}', '{"type": "array", "items": {"type": "string"}}'):
        assert {parse(type, text).type for type in ("AVRO", "JSON")} == {"AVRO", "JSON"}


@pytest.mark.parametrize("text", ['syntax = "proto3"; message M {}', "// a comment\nmessage M {}", "CgAiAA=="])
def test_what_is_not_like_json_is_protobuf(text: str) -> None:
    assert type_of(text) == "PROTOBUF"


@pytest.mark.parametrize("text", ["{", '{"type": "record",}', "[" * 100_000])
def test_broken_json_has_no_type(text: str) -> None:
    assert type_of(text) is None
    for type in ("AVRO", "JSON"):
        with pytest.raises(InvalidSchema):
            parse(type, text)


@pytest.mark.parametrize("command", ["register", "check"])
def test_a_file_that_may_be_either_is_refused_with_what_to_say(command: str, tmp_path: Path) -> None:
    file = tmp_path / "name.json"
    file.write_text('{"type": "string"}')
    refused = CliRunner().invoke(app, [command, "names-value", str(file), "--url", "http://127.0.0.1:1"])
    assert isinstance(refused.exception, RegistryRefused)
    assert "--type JSON" in str(refused.exception)


@pytest.mark.parametrize("given", ["a", "a=b", "a:1", "=b:1", "a=:1", "a=b:", "a=b:x", "a=b:-1"])
def test_a_reference_that_says_too_little_is_refused(given: str, tmp_path: Path) -> None:
    file = tmp_path / "name.avsc"
    file.write_text('"string"')
    refused = CliRunner().invoke(app, ["register", "s", str(file), "--reference", given, "--url", "http://127.0.0.1:1"])
    assert refused.exit_code == 2
    assert "NAME=SUBJECT:VERSION" in refused.output
