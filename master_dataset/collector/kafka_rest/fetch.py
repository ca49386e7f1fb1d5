"""Read any offset again: `/fetch`, and `/offsets` to find where a time begins. No state is kept between requests."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from infra.rest.problems import Problem
from infra.rest.responses import json_response, wrong_parameter
from master_dataset.collector.context import Collector, get_and_post
from master_dataset.collector.kafka_rest.records import as_json, size_of, take
from master_dataset.collector.kafka_rest.requests import (
    check_locations,
    parameters_and_body,
    requested_locations,
    waiting,
)
from master_dataset.collector.parameters import path_parts

KAFKA_TIMEOUT_S = 10.0
READER = {
    "group.id": "tidemark-collector-fetch",  # librdkafka wants one; nothing is ever committed to it
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 100,
    "queued.max.messages.kbytes": 4096,
}


def reading_routes(collector: Collector) -> APIRouter:
    """`/fetch` and `/offsets/{at}`."""
    routes = APIRouter(tags=["read"])

    @get_and_post(routes, "/fetch")
    async def fetch(request: Request) -> Response:
        """Records from given offsets on: `{topic, partition, offset}`, or a list `topicPartitionOffsets` of them.

        Waits up to `timeout` milliseconds (1000) while there is nothing to read, and gives at most `limit` (500), fewer
        where they are as large as a body may be.
        429: too many wait already.
        """
        collector.allow(request, "consume")
        parameters, body = await parameters_and_body(collector, request)
        places = requested_locations(parameters, body, with_offset=True, list_name="topicPartitionOffsets")
        timeout_s, limit = waiting(parameters, body)
        await check_locations(collector, places)
        return json_response(await collector.fetching.run_now(fetch_from, collector, places, timeout_s, limit))

    @get_and_post(routes, "/offsets/{at}")
    async def offsets(request: Request) -> Response:
        """The first offset at or after a time, or the `earliest` or `latest`, of `{topic, partition}` or a list."""
        collector.allow(request, "consume")
        parameters, body = await parameters_and_body(collector, request)
        places = requested_locations(parameters, body, with_offset=False, list_name="topicPartitions")
        at = read_time(path_parts(request, b"/offsets/", 1)[0])
        await check_locations(collector, places)
        return json_response(await asyncio.to_thread(offsets_at, collector, places, at))

    return routes


def fetch_from(collector: Collector, places: list[TopicPartition], timeout_s: float, limit: int) -> list[Any]:
    """Read until there is something, then what more is at hand."""
    consumer = Consumer({**collector.kafka_config, **READER})
    try:
        for place in places:
            lowest, end = consumer.get_watermark_offsets(place, timeout=KAFKA_TIMEOUT_S)
            if not lowest <= place.offset <= end:
                raise Problem(
                    416,
                    "offset-out-of-range",
                    f"Topic {place.topic!r}, partition {place.partition} has the offsets {lowest} to {end - 1}; "
                    f"{place.offset} is not among them.",
                    earliest=lowest,
                    latest=end,
                )
        consumer.assign(places)
        return gather(consumer, len(places), timeout_s, limit, collector.limits.body)
    except KafkaException as error:
        raise kafka_problem(error) from None
    finally:
        consumer.close()


def gather(consumer: Consumer, partitions: int, timeout_s: float, limit: int, max_bytes: int) -> list[Any]:
    """Records until `limit`, `max_bytes`, the timeout, or the end of every partition once there was a record."""
    size = 0
    found: list[Any] = []
    ended: set[tuple[str | None, int | None]] = set()
    deadline = time.monotonic() + timeout_s
    while len(found) < limit and size < max_bytes:
        left_s = max(0.0, deadline - time.monotonic())
        for message in take(consumer, limit - len(found), max_bytes - size, min(left_s, 0.05)):
            error, size = message.error(), size + size_of(message)
            if error is None:
                found.append(as_json(message))
                ended.discard((message.topic(), message.partition()))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add((message.topic(), message.partition()))
            else:
                raise KafkaException(error)
        if time.monotonic() >= deadline or (found and len(ended) >= partitions):
            break
    return found


def read_time(text: str) -> int | str:
    """`earliest`, `latest`, or milliseconds since 1970."""
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit() and len(text) < 16:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise wrong_parameter(
            "the time in the path", "earliest, latest, milliseconds since 1970 or an ISO-8601 time", text
        ) from None


def offsets_at(collector: Collector, places: list[TopicPartition], at: int | str) -> list[dict[str, Any]]:
    """The offset that a time has in each partition; the end where nothing is as late."""
    consumer = Consumer({**collector.kafka_config, **READER})
    try:
        ends = [consumer.get_watermark_offsets(place, timeout=KAFKA_TIMEOUT_S) for place in places]
        if isinstance(at, int):
            asked = [TopicPartition(place.topic, place.partition, at) for place in places]
            answered = consumer.offsets_for_times(asked, timeout=KAFKA_TIMEOUT_S)
            found = [place.offset if place.offset >= 0 else end for place, (_, end) in zip(answered, ends, strict=True)]
        else:
            found = [lowest if at == "earliest" else end for lowest, end in ends]
    except KafkaException as error:
        raise kafka_problem(error) from None
    finally:
        consumer.close()
    return [
        {"topic": place.topic, "partition": place.partition, "offset": offset}
        for place, offset in zip(places, found, strict=True)
    ]


def kafka_problem(error: KafkaException) -> Problem:
    """What Kafka said to a reader."""
    reason: KafkaError = error.args[0]
    match reason.code():
        case KafkaError.UNKNOWN_TOPIC_OR_PART | KafkaError._UNKNOWN_TOPIC | KafkaError._UNKNOWN_PARTITION:
            return Problem(404, "unknown-topic", f"Kafka says: {reason.str()}.")
        case KafkaError._AUTO_OFFSET_RESET | KafkaError.OFFSET_OUT_OF_RANGE:
            return Problem(416, "offset-out-of-range", f"Kafka says: {reason.str()}.")
        case KafkaError.TOPIC_AUTHORIZATION_FAILED | KafkaError.GROUP_AUTHORIZATION_FAILED:
            return Problem(502, "refused-by-kafka", f"Kafka says: {reason.str()}.")
    return Problem(503, "kafka-unreachable", f"Kafka did not answer: {reason.str()}. Try again.", retry_after_s=2)
