"""The files that begin a view of a subject's records: they load, and what cannot be read by a source is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from tidemark.commands.subject_view import Roles, first_view
from views.declarations import Declarations, load_declarations
from views.formats.subject_names import subjects_of
from views.source import Source

ROLES = Roles("event_id", "event_time")
TIME = {"type": "long", "logicalType": "timestamp-millis"}
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "event_id", "type": "string"}, {"name": "event_time", "type": TIME}],
    }
)
PROTOBUF = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order { string event_id = 1; google.protobuf.Timestamp event_time = 2; }
"""


def json_schema(**more: Any) -> str:
    time = {"type": "string", "format": "date-time"}
    return json.dumps({"type": "object", "properties": {"event_id": {"type": "string"}, "event_time": time, **more}})


def found(text: str, type: str | None = None, **more: Any) -> dict[str, Any]:
    return {"schema": text, "version": 3, **({"schemaType": type} if type else {}), **more}


def written(folder: Path, files: dict[str, str]) -> Declarations:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return load_declarations(folder, with_catalog=False)


@pytest.mark.parametrize(
    ("answer", "format", "file"),
    [
        (found(AVRO), "avro", "orders_seen.avsc"),
        pytest.param(found(PROTOBUF, "PROTOBUF"), "protobuf", "orders_seen.proto", marks=pytest.mark.process),
        (found(json_schema(), "JSON"), "json_schema", "orders_seen.json"),
    ],
)
def test_the_files_declare_a_source_of_the_topic_and_a_view_that_counts(
    tmp_path: Path, answer: dict[str, Any], format: str, file: str
) -> None:
    declared = written(tmp_path, first_view("orders_seen", "Shop.Orders-2-value", answer, ROLES, ()))
    source = Source("shop_orders_2", topic="Shop.Orders-2", format=format, reader_schema=tmp_path / file)
    assert declared.sources == {source.name: source}
    view = declared.views["orders_seen"]
    assert (view.source.name, view.grain, list(view.answers)) == ("shop_orders_2", "1h", ["events"])


def test_other_fields_are_the_id_and_the_time(tmp_path: Path) -> None:
    text = AVRO.replace("event_id", "order").replace("event_time", "at")
    declared = written(tmp_path, first_view("seen", "9-value", found(text), Roles("order", "at"), ()))
    source = declared.source("of_9")
    assert (source.id_field, source.time_field) == ("order", "at")


NAMED = AVRO.replace('"Order"', '"Order", "namespace": "com.shop"')


@pytest.mark.parametrize(
    ("subject", "answer", "topic", "expected"),
    [
        ("com.shop.Order", found(NAMED), "web", "web"),
        ("orders-eu-com.shop.Order", found(NAMED), None, "orders-eu"),
        ("orders-com.shop.Order", found(AVRO.replace('"Order"', '"com.shop.Order"')), None, "orders"),
        ("orders-Order", found(AVRO), None, "orders"),
        ("orders-Reading", found(json_schema().replace("{", '{"title": "Reading", ', 1), "JSON"), None, "orders"),
        ("custom-name", found(AVRO), "web", "web"),
        pytest.param(
            "orders-shop.Order", found(PROTOBUF.replace("message", "package shop; message"), "PROTOBUF"), None,
            "orders", marks=pytest.mark.process,
        ),
    ],
)  # fmt: skip
def test_the_topic_is_that_of_the_subject_by_any_strategy_or_the_named_one(
    tmp_path: Path, subject: str, answer: dict[str, Any], topic: str | None, expected: str
) -> None:
    declared = written(tmp_path, first_view("seen", subject, answer, ROLES, (), topic))
    (source,) = declared.sources.values()
    assert source.topic == expected
    if subject != "custom-name":
        assert subject in subjects_of(source)


def test_names_in_a_schema_are_never_code(tmp_path: Path) -> None:
    name = 'x"\r\x0cimport_this\r"'
    declared = written(
        tmp_path,
        first_view(
            "seen", "t-value", found(json_schema(**{name: {"type": "string"}}), "JSON"), Roles(name, ROLES[1]), ()
        ),
    )
    assert declared.source("t").id_field == name


@pytest.mark.parametrize(
    ("subject", "answer", "message"),
    [
        ("t-key", found(AVRO), "'t-key' does not say whose records it describes"),
        ("-value", found(AVRO), "'-value' does not say whose records it describes"),
        ('a"""b-value', found(AVRO), "is not a topic name"),
        ("t-value", found(AVRO.replace("event_id", "order")), "id_field is 'event_id', which is not among its fields"),
        ("t-value", found(AVRO.replace("event_id", "order")), "Fields with other names: --id-field and --time-field."),
        ("t-value", found('"string"'), "no source can read by the schema of 't-value'"),
        ("t-value", found("{", "JSON"), "no source can read by the schema of 't-value'"),
        ("t-value", found(AVRO, "THRIFT"), "is no Avro, Protobuf or JSON schema"),
        ("t-value", found(AVRO, version="3"), "is no Avro, Protobuf or JSON schema"),
        ("t-value", found("\ud800"), "is no Avro, Protobuf or JSON schema"),
        ("com.shop.Order", found(AVRO), "Name the topic with --topic"),
        ("t-com.shop.Item", found(AVRO), "it is neither TOPIC-value nor TOPIC-RECORD"),
        ("shop.orders-value", found(AVRO), "there is a source 'orders' of the topic 'shop_orders' already"),
    ],
)
def test_what_no_source_can_read_is_refused(subject: str, answer: dict[str, Any], message: str) -> None:
    fields = "event_id string, event_time timestamp"
    with pytest.raises(typer.BadParameter) as refused:
        first_view("seen", subject, answer, ROLES, [Source("orders", fields, topic="shop_orders")])
    assert message in str(refused.value)
