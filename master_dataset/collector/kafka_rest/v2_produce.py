"""REST Proxy v2: produce records into a topic, or into one of its partitions."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from infra.rest.problems import Problem
from infra.threads import Threads
from master_dataset.collector.bodies import beside_loop, check_batch, invalid_body, parse_within, read_body
from master_dataset.collector.context import Collector
from master_dataset.collector.kafka_rest.embedded_schemas import EmbeddedSchemas, SchemaChoice
from master_dataset.collector.kafka_rest.messages import read_partition
from master_dataset.collector.kafka_rest.produce import check_records, check_topics
from master_dataset.collector.kafka_rest.v2_media import PREFIX, SCHEMA_FORMATS, V2Route, format_of_body, reply
from master_dataset.collector.outcomes import STATUS_OF
from master_dataset.collector.parameters import whole_number
from master_dataset.collector.permissions import Permissions
from master_dataset.collector.producer import Outcome, Refusal
from master_dataset.kafka.record import KafkaRecord
from views.strict_json import dump_json

MAX_PARTITION = 2**31 - 1
FINAL, RETRIABLE = 1, 2
"""Confluent's `error_code` of a record that Kafka did not take."""
BODY_MEMBERS = {"records", "key_schema", "value_schema", "key_schema_id", "value_schema_id"}
RECORD_MEMBERS = {"key", "value", "partition"}

Encode = Callable[[Any, str], bytes | None]
"""A key or value in JSON -> its bytes. The text is where it is in the body."""

BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/vnd.kafka.json.v2+json": {
                "schema": {
                    "type": "object",
                    "required": ["records"],
                    "properties": {
                        "records": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "properties": {"key": {}, "value": {}, "partition": {"type": "integer", "minimum": 0}},
                            },
                        },
                        "key_schema": {"type": "string"},
                        "value_schema": {"type": "string"},
                        "key_schema_id": {"type": "integer"},
                        "value_schema_id": {"type": "integer"},
                    },
                }
            }
        },
    },
}


def produce_routes(collector: Collector, schemas: EmbeddedSchemas) -> APIRouter:
    """`/topics/{topic}` and `/topics/{topic}/partitions/{partition}`."""
    routes = APIRouter(prefix=PREFIX, tags=["REST Proxy v2"], route_class=V2Route)

    @routes.post("/topics/{topic}", openapi_extra=BODY)
    async def produce(request: Request, topic: str) -> Response:
        """Store records. Content-Type says what keys and values are: binary (base64), json, avro, jsonschema, protobuf.

        Each record has an entry in `offsets`; one that Kafka did not take has an `error_code`: 2 may be sent again. A
        request that is wrong anywhere is refused, and nothing is stored.
        """
        return await _produce(collector, schemas, request, topic, None)

    @routes.post("/topics/{topic}/partitions/{partition}", openapi_extra=BODY)
    async def produce_to_partition(request: Request, topic: str, partition: str) -> Response:
        """The same, into one partition."""
        return await _produce(collector, schemas, request, topic, partition)

    return routes


async def _produce(
    collector: Collector, schemas: EmbeddedSchemas, request: Request, topic: str, in_path: str | None
) -> Response:
    allowed = collector.allow(request, "produce")
    check_topics(allowed, [topic])
    format = format_of_body(request)
    await collector.topics.partitions(topic)
    partition = None if in_path is None else whole_number("partition", in_path, 0, MAX_PARTITION)
    if partition is not None:
        await collector.topics.check_partition(topic, partition)
    with collector.budget.charge() as charge:
        body = await read_body(request, collector.limits.of_body, charge, collector.parsing)
        given = await beside_loop(collector.parsing, body, parse_within, body, collector.limits.of_body, charge)
        records = _records(given, with_partition=partition is None)
        check_batch(len(records), collector.limits, charge)
        ids: dict[str, int | None] = {"key": None, "value": None}
        encoders: dict[str, Encode] = {}
        for part in ids:
            ids[part], encoders[part] = await _encoder(schemas, request, allowed, given, records, format, topic, part)
        found = await encode_records(collector.parsing, body, format, records, topic, partition, encoders)
        await check_records(collector, found)
        outcomes = await collector.producer.send(found)
    collector.metrics.count(topic, outcomes)
    return reply(
        {
            "offsets": [*map(_offset, outcomes)],
            "key_schema_id": ids["key"],
            "value_schema_id": ids["value"],
        }
    )


def _records(given: Any, *, with_partition: bool) -> list[dict[str, Any]]:
    if not isinstance(given, dict) or not isinstance(given.get("records"), list) or not given["records"]:
        raise invalid_body("records", 'an object like {"records": [{"value": 1}]} is expected')
    if unknown := given.keys() - BODY_MEMBERS:
        raise invalid_body(min(unknown), f"there is no such member; there are {', '.join(sorted(BODY_MEMBERS))}")
    members = RECORD_MEMBERS if with_partition else RECORD_MEMBERS - {"partition"}
    for index, record in enumerate(given["records"]):
        if not isinstance(record, dict):
            raise invalid_body(f"records[{index}]", 'a record is an object like {"value": 1}')
        if unknown := record.keys() - members:
            name = f"records[{index}].{min(unknown)}"
            raise invalid_body(name, f"a record has no such member; there are {', '.join(sorted(members))}")
    records: list[dict[str, Any]] = given["records"]
    return records


async def _encoder(
    schemas: EmbeddedSchemas,
    request: Request,
    allowed: Permissions,
    given: dict[str, Any],
    records: list[dict[str, Any]],
    format: str,
    topic: str,
    part: str,
) -> tuple[int | None, Encode]:
    """What encodes the keys or the values of a request, and the id of its schema if it has one."""
    if format not in SCHEMA_FORMATS:
        return None, _from_base64 if format == "binary" else _from_json
    if all(record.get(part) is None for record in records):
        return None, _nothing
    text, schema_id = given.get(f"{part}_schema"), given.get(f"{part}_schema_id")
    if text is None and schema_id is None:
        raise Problem(
            422,
            f"{part}-schema-missing",
            f"The request includes {part}s and the format {format}, which needs a schema; it has neither {part}_schema "
            f"nor {part}_schema_id. Nothing was stored.",
        )
    choice = SchemaChoice(SCHEMA_FORMATS[format], topic, part, text=text, id=schema_id)
    writer = await schemas.writer(request, allowed, choice)
    return writer.id, lambda value, where: None if value is None else writer.encode(value, where)


async def encode_records(
    threads: Threads,
    body: bytes,
    format: str,
    records: list[dict[str, Any]],
    topic: str,
    partition: int | None,
    encoders: dict[str, Encode],
) -> list[KafkaRecord]:
    """Always in a thread if there is a schema, which may be anybody's: a small body may take long with it."""
    if format in SCHEMA_FORMATS:
        return await threads.run(_encoded, records, topic, partition, encoders)
    return await beside_loop(threads, body, _encoded, records, topic, partition, encoders)


def _encoded(
    records: list[dict[str, Any]], topic: str, partition: int | None, encoders: dict[str, Encode]
) -> list[KafkaRecord]:
    return [
        KafkaRecord(
            topic=topic,
            value=encoders["value"](record.get("value"), f"records[{index}].value"),
            key=encoders["key"](record.get("key"), f"records[{index}].key"),
            partition=read_partition(
                record.get("partition") if partition is None else partition, f"records[{index}].partition"
            ),
        )
        for index, record in enumerate(records)
    ]


def _from_base64(value: Any, where: str) -> bytes | None:
    if value is None:
        return None
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise invalid_body(where, "this is not a text in base64") from None


def _from_json(value: Any, _where: str) -> bytes | None:
    return None if value is None else dump_json(value)


def _nothing(_value: Any, _where: str) -> bytes | None:
    return None


def _offset(outcome: Outcome) -> dict[str, Any]:
    if not isinstance(outcome, Refusal):
        return {"partition": outcome.partition, "offset": outcome.offset, "error_code": None, "error": None}
    is_certain = outcome.code in STATUS_OF and outcome.code != KafkaError._QUEUE_FULL and not outcome.of_our_clock
    code = FINAL if is_certain else RETRIABLE
    return {"partition": None, "offset": None, "error_code": code, "error": outcome.text}
