"""REST Proxy v2: read records as a consumer instance, and commit offsets."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

from confluent_kafka import Message, TopicPartition
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from infra.rest.problems import Problem
from master_dataset.collector.bodies import invalid_body
from master_dataset.collector.context import Collector
from master_dataset.collector.kafka_rest.consumers import Consumers
from master_dataset.collector.kafka_rest.embedded_schemas import EmbeddedSchemas
from master_dataset.collector.kafka_rest.instance import Present
from master_dataset.collector.kafka_rest.requests import (
    MAX_LIMIT,
    MAX_TIMEOUT_MS,
    check_locations,
    parameters_and_body,
    requested_locations,
)
from master_dataset.collector.kafka_rest.topic_pattern import matching_topics
from master_dataset.collector.kafka_rest.v2_instances import INSTANCE, find
from master_dataset.collector.kafka_rest.v2_media import (
    PREFIX,
    SCHEMA_FORMATS,
    V2Route,
    check_format_accepted,
    media_type_of,
    reply,
)
from master_dataset.collector.parameters import query, whole_number
from master_dataset.errors import InvalidEvent
from views.strict_json import parse_json

MAX_BYTES = 2**31 - 1
NO_LIMIT = "-1"


def consumer_routes(collector: Collector, consumers: Consumers, schemas: EmbeddedSchemas) -> APIRouter:
    """`/records` and `/offsets` of an instance."""
    routes = APIRouter(prefix=PREFIX, tags=["REST Proxy v2"], route_class=V2Route)

    @routes.get(f"{INSTANCE}/records")
    async def records(request: Request, group: str, instance: str) -> Response:
        """The next records, in the format of the instance; Accept has to fit it (40601).

        Waits up to `timeout` milliseconds, gives records of `max_bytes` at most, and one at least. With
        auto.commit.enable, what the call before gave is committed first. 42206: a record is not of the format; the
        next call begins with it again, and positions leads past it.
        """
        allowed, found = find(collector, consumers, request, group, instance, checks_media=False)
        proxied = found.proxied
        check_format_accepted(request, proxied.format)
        parameters = query(request)
        timeout = parameters.get("timeout", NO_LIMIT)
        timeout_ms = whole_number("timeout", proxied.timeout_ms if timeout == NO_LIMIT else timeout, 0, MAX_TIMEOUT_MS)
        size = parameters.get("max_bytes", NO_LIMIT)
        max_bytes = MAX_BYTES if size == NO_LIMIT else whole_number("max_bytes", size, 1, MAX_BYTES)
        if proxied.pattern is not None:
            proxied.topics = await matching_topics(collector.topics, allowed, proxied.pattern)
            if not proxied.topics:
                await asyncio.sleep(timeout_ms / 1000)
                return reply([], media_type=media_type_of(proxied.format))
        if not proxied.topics:
            raise Problem(
                409, "subscribed-otherwise", "Consumer is not subscribed to any topics or assigned any partitions."
            )
        given = await consumers.use(
            found,
            found.consume,
            () if proxied.is_assigned else proxied.topics,
            timeout_ms / 1000,
            MAX_LIMIT,
            auto_commit=proxied.auto_commit,
            max_bytes=max_bytes,
            min_bytes=proxied.min_bytes,
            present=_presenter(proxied.format, schemas),
        )
        return reply(given, media_type=media_type_of(proxied.format))

    @routes.post(f"{INSTANCE}/offsets")
    async def commit(request: Request, group: str, instance: str) -> Response:
        """Commit `{"offsets": [{topic, partition, offset}]}`; without a body, everything that was given.

        The offset is that of the last record that was processed, as in Confluent's proxy: one more is committed.
        """
        allowed, found = find(collector, consumers, request, group, instance)
        _, body = await parameters_and_body(collector, request)
        locations = None
        if body is not None and body != {}:
            if not isinstance(body, dict) or not isinstance(body.get("offsets"), list):
                raise invalid_body("offsets", 'an object like {"offsets": [...]} is expected')
            locations = requested_locations({}, body, with_offset=True, list_name="offsets")
            await check_locations(collector, allowed, locations)
            locations = [TopicPartition(each.topic, each.partition, each.offset + 1) for each in locations]
        return reply(await consumers.use(found, found.commit, locations))

    @routes.get(f"{INSTANCE}/offsets")
    async def committed(request: Request, group: str, instance: str) -> Response:
        """What the group has committed of `{"partitions": [{topic, partition}]}`: the offsets of the next records."""
        allowed, found = find(collector, consumers, request, group, instance)
        _, body = await parameters_and_body(collector, request)
        if not isinstance(body, dict) or not isinstance(body.get("partitions"), list):
            raise invalid_body("partitions", 'an object like {"partitions": [...]} is expected')
        locations = requested_locations({}, body, with_offset=False, list_name="partitions")
        await check_locations(collector, allowed, locations)
        known = await consumers.use(found, found.committed, locations)
        return reply({"offsets": [{**each, "metadata": ""} for each in known if each["offset"] is not None]})

    return routes


def _presenter(format: str, schemas: EmbeddedSchemas) -> Present:
    """What gives a message as an object of this format. It runs in a thread."""
    read: Callable[[bytes], Any] = _as_base64 if format == "binary" else _as_json
    if format in SCHEMA_FORMATS:
        read = schemas.reader(SCHEMA_FORMATS[format], asyncio.get_running_loop())

    def present(message: Message) -> dict[str, Any]:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        found: dict[str, Any] = {}
        for part, data in (("key", message.key()), ("value", message.value())):
            try:
                found[part] = None if data is None else read(_bytes(data))
            except ValueError as error:
                raise Problem(
                    422,
                    "undecodable",
                    f"The {part} of the record at {topic}/{partition}, offset {offset} is not {format}: {error}. Read "
                    f"it with an instance of the format binary, or go past it with positions, to offset {offset} + 1.",
                    topic=topic,
                    partition=partition,
                    offset=offset,
                ) from None
        return {"topic": topic, **found, "partition": partition, "offset": offset}

    return present


def _bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _as_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _as_json(data: bytes) -> Any:
    try:
        return parse_json(data)
    except InvalidEvent as error:
        raise ValueError(error.reason) from None
