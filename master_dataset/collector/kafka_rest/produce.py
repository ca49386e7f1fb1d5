"""The produce API: messages of any shape into any topic, answered when Kafka acknowledged them."""

from __future__ import annotations

from collections.abc import Collection

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from infra.rest.responses import json_response, wrong_parameter
from master_dataset.collector.bodies import (
    beside_loop,
    charge_for_now,
    check_batch,
    check_record_size,
    parse_body,
    read_body,
)
from master_dataset.collector.context import Collector, get_and_post
from master_dataset.collector.kafka_rest.messages import read_messages
from master_dataset.collector.limits import Charge, Limits
from master_dataset.collector.outcomes import location, problem_of
from master_dataset.collector.parameters import acks_of, path_parts, query
from master_dataset.collector.permissions import Permissions
from master_dataset.collector.producer import Acks, Outcome
from master_dataset.collector.reserved import check_writable
from master_dataset.kafka.record import ANY_PARTITION, KafkaRecord

ACKS_TEXT = """
`acks` says what the answer waits for. `all` (the default): every in-sync replica has the record, which is written once
however often the collector had to send it. `1`: the leader alone has it; it is lost if that broker is lost at once.
`0`: it was handed to the network; nobody says whether it arrived, and there is no offset.
"""
MESSAGE = {
    "type": "object",
    "required": ["value"],
    "properties": {
        "topic": {"type": "string"},
        "partition": {"type": "integer", "minimum": 0},
        "timestamp": {"description": "Milliseconds since 1970, or ISO-8601. Default: now."},
        "key": {"description": "A string is stored as UTF-8, anything else as JSON."},
        "value": {"description": "A string is stored as UTF-8, anything else as compact JSON."},
        "headers": {
            "type": "array",
            "items": {"type": "object", "properties": {"key": {"type": "string"}, "value": {"type": "string"}}},
        },
    },
}
KEY_PARAMETER = {
    "name": "key",
    "in": "query",
    "schema": {"type": "string"},
    "description": "The key of every message that names none.",
}
ACKS_PARAMETER = {
    "name": "acks",
    "in": "query",
    "schema": {"type": "string", "enum": ["0", "1", "all"], "default": "all"},
    "description": ACKS_TEXT,
}
BODY = {
    "parameters": [KEY_PARAMETER, ACKS_PARAMETER],
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"oneOf": [MESSAGE, {"type": "array", "items": MESSAGE}]}}},
    },
}


def produce_routes(collector: Collector) -> APIRouter:
    """`/produce`, `/produce/{topic}` and `/produce/{topic}/{message}`."""
    routes = APIRouter(tags=["produce"])

    @routes.get(
        "/produce/{topic}/{message:path}",
        openapi_extra={
            "parameters": [KEY_PARAMETER, ACKS_PARAMETER],
        },
    )
    async def produce_one(request: Request) -> Response:
        """Store one message, given in the path."""
        allowed = collector.allow(request, "produce")
        topic, message = path_parts(request, b"/produce/", 2)
        check_topics(allowed, [topic])
        if not message:
            raise wrong_parameter("message", "a text that is not empty; send empty values in a body", message)
        parameters = query(request)
        record = KafkaRecord(topic, message.encode(), request_key(parameters))
        with collector.budget.charge() as charge:
            charge.add(record.size)
            outcomes = await _send(collector, [record], acks_of(parameters))
        return json_response(location(topic, outcomes[0]))

    @get_and_post(routes, "/produce/{topic}", openapi_extra=BODY)
    async def produce_to_topic(request: Request) -> Response:
        """Store one message or an array of them in one topic. Any Content-Type will do.

        403: the topic is reserved, or the key is limited to others. 422: a header begins with `tidemark-`, for example.
        """
        allowed = collector.allow(request, "produce")
        return await _produce(collector, request, allowed, path_parts(request, b"/produce/", 1)[0])

    @get_and_post(routes, "/produce", openapi_extra=BODY)
    async def produce_to_many(request: Request) -> Response:
        """Store one message or an array of them, each naming its topic. Any Content-Type will do.

        403 and 422 as for one topic; nothing is stored then.
        """
        return await _produce(collector, request, collector.allow(request, "produce"), None)

    return routes


async def _produce(collector: Collector, request: Request, allowed: Permissions, topic: str | None) -> Response:
    """Everything is checked before anything is sent."""
    if topic is not None:
        check_topics(allowed, [topic])
    parameters = query(request)
    acks, key = acks_of(parameters), request_key(parameters)
    with collector.budget.charge() as charge:
        body = await read_body(request, collector.limits.of_body, charge, collector.parsing)
        records = await beside_loop(collector.parsing, body, read_records, body, topic, key, collector.limits, charge)
        check_topics(allowed, {record.topic for record in records})
        outcomes = await _send(collector, records, acks)
    return json_response([location(record.topic, outcome) for record, outcome in zip(records, outcomes, strict=True)])


def request_key(parameters: dict[str, str]) -> bytes | None:
    """The key of all messages of a request that name none."""
    key = parameters.get("key")
    return None if key is None else key.encode()


def read_records(
    body: bytes, topic: str | None, key: bytes | None, limits: Limits, charge: Charge
) -> list[KafkaRecord]:
    """From bytes to records in one go: what was parsed is far larger, and lives no longer than this."""
    charged = charge_for_now(body, limits.of_body, charge)
    parsed = parse_body(body)
    check_batch(len(parsed) if isinstance(parsed, list) else 1, limits, charge)
    records = read_messages(parsed, topic, key)
    charge.give_back(charged)
    return records


async def _send(collector: Collector, records: list[KafkaRecord], acks: Acks) -> list[Outcome]:
    """Send what can be sent. Raises the problem that fits where a record was not stored for certain."""
    await check_records(collector, records)
    outcomes = await collector.producer.send(records, acks)
    collector.metrics.count([record.topic for record in records], outcomes)
    results = [location(record.topic, outcome) for record, outcome in zip(records, outcomes, strict=True)]
    if problem := problem_of(outcomes, results):
        for topic in {record.topic for record in records} if problem.status == 404 else ():
            collector.topics.forget(topic)
        raise problem
    return outcomes


async def check_records(collector: Collector, records: list[KafkaRecord]) -> None:
    """Raise the problem 413 for a record that is too large, 404 for a topic or partition that does not exist."""
    for index, record in enumerate(records):
        check_record_size(f"[{index}]", record.size, collector.limits)
    for topic in {record.topic for record in records}:
        await collector.topics.partitions(topic)
    for topic, partition in {(record.topic, record.partition) for record in records}:
        if partition != ANY_PARTITION:
            await collector.topics.check_partition(topic, partition)


def check_topics(allowed: Permissions, topics: Collection[str]) -> None:
    """Raise the problem 403 for a topic that nobody may write, or not this key."""
    for topic in topics:
        check_writable(allowed.declarations, topic)
    allowed.check_topics(topics)
