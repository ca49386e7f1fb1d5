"""What Confluent's own serializers write is read as they meant it, framed by an id or by a header."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory

from tests.spark.test_avro_records import framed, plain
from views.formats.framing import split
from views.formats.protobuf_schema import compiled, pool_of
from views.formats.writer_schemas import WriterSchema
from views.on_spark.events import with_event
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AVRO = json.dumps({
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [
        {"name": "event_id", "type": "string"},
        {"name": "event_time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "n", "type": "int"},
    ],
})  # fmt: skip
JSON = json.dumps({
    "title": "Order", "type": "object",
    "properties": {
        "event_id": {"type": "string"}, "n": {"type": "integer"},
        "event_time": {"type": "string", "format": "date-time"},
    },
})  # fmt: skip
ORDER = "message Order { string event_id = 1; google.protobuf.Timestamp event_time = 2; int32 n = 3; }"
IMPORT = 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; '
PROTOBUF, SECOND = IMPORT + ORDER, f"{IMPORT} message First {{ string x = 1; }} {ORDER}"
AT = datetime(2026, 5, 2, 12, 0, 0, 250_000, tzinfo=UTC)
FIELDS: dict[str, Any] = {"event_id": "a", "event_time": AT, "n": 7}


def message(text: str) -> Any:
    return message_factory.GetMessageClass(pool_of(compiled(text)).FindMessageTypeByName("Order"))


def sender(format_: str, written: str, client: Any, conf: dict[str, Any]) -> tuple[Any, Any]:
    """A serializer, and the event as it takes it."""
    match format_:
        case "avro":
            return AvroSerializer(client, written, conf=conf), FIELDS
        case "json_schema":
            return JSONSerializer(written, client, conf=conf), {**FIELDS, "event_time": AT.isoformat()}
    made = message(written)
    return ProtobufSerializer(made, client, conf=conf), made(**FIELDS)


@pytest.mark.filterwarnings("ignore")  # of the client's own dependencies
@pytest.mark.parametrize("is_in_header", [False, True])
@pytest.mark.parametrize(
    ("format_", "type_", "schema", "written"),
    [
        ("avro", "AVRO", AVRO, AVRO),
        ("json_schema", "JSON", JSON, JSON),
        ("protobuf", "PROTOBUF", PROTOBUF, PROTOBUF),
        ("protobuf", "PROTOBUF", PROTOBUF, SECOND),
    ],
)
def test_a_stock_serializer_is_understood(
    spark: SparkSession, format_: str, type_: str, schema: str, written: str, is_in_header: bool
) -> None:
    client = SchemaRegistryClient.new_client({"url": f"mock://{format_}{is_in_header}"})
    conf = {"schema.id.serializer": header_schema_id_serializer} if is_in_header else {}
    serialize, event = sender(format_, written, client, conf)
    context = SerializationContext("orders", MessageField.VALUE, [])
    value = serialize(event, context)
    headers: Any = context.headers
    assert bool(headers) is is_in_header
    frame = split(value, headers)
    assert frame is not None
    source = Source("orders", format=format_, reader_schema=schema)
    writers = {frame.frame: WriterSchema(type_, written)}
    (row,) = with_event(framed(spark, [value], [headers]), source, writers=writers).collect()
    assert row["invalid"] is None
    assert plain(row["event"]) == FIELDS
