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

from infra.clients.kafka_admin import KafkaAdmin
from infra.rest.problems import Problem
from infra.rest.responses import json_response, wrong_parameter
from master_dataset.collector.context import Collector, get_and_post
from master_dataset.collector.kafka_rest.records import as_json, size_of, take
from master_dataset.collector.kafka_rest.requests import (
    check_locations,
    isolation_of,
    parameters_and_body,
    requested_locations,
    waiting,
)
from master_dataset.collector.parameters import path_parts
from master_dataset.kafka.errors import KafkaUnreachable, TopicError
from master_dataset.kafka.topics import EARLIEST, LATEST, read_offsets

KAFKA_TIMEOUT_S = 10.0
SPECS = {"earliest": EARLIEST, "latest": LATEST}
NO_SUCH_OFFSET = -1
"""Kafka's reply where no record of a partition is as late as the time asked for."""
READER = {
    "group.id": "tidemark-collector-fetch",  # librdkafka wants one; nothing is ever committed to it
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 100,
    "queued.max.messages.kbytes": 4096,
}


def reading_routes(collector: Collector) -> APIRouter:
    """`/fetch` and `/offsets/{at}`."""
    routes = APIRouter(tags=["read"])
    admin = collector.admin.with_timeout(KAFKA_TIMEOUT_S)

    @get_and_post(routes, "/fetch")
    async def fetch(request: Request) -> Response:
        """Records from given offsets on: `{topic, partition, offset}`, or a list `topicPartitionOffsets` of them.

        Waits up to `timeout` milliseconds (1000) while there is nothing to read, and gives at most `limit` (500), fewer
        where they are as large as a body may be.
        `isolation=read_uncommitted`: records of open and aborted transactions, too. 429: too many wait already.
        """
        allowed = collector.allow(request, "consume")
        parameters, body = await parameters_and_body(collector, request)
        locations = requested_locations(parameters, body, with_offset=True, list_name="topicPartitionOffsets")
        timeout_s, limit = waiting(parameters, body)
        await check_locations(collector, allowed, locations)
        isolation = isolation_of(parameters, body) or "read_committed"
        return json_response(
            await collector.fetching.run_now(fetch_from, collector, locations, timeout_s, limit, isolation)
        )

    @get_and_post(routes, "/offsets/{at}")
    async def offsets(request: Request) -> Response:
        """The first offset at or after a time, or the `earliest` or `latest`, of `{topic, partition}` or a list.

        `isolation=read_uncommitted`: `latest` is behind open transactions, instead of before them.
        """
        allowed = collector.allow(request, "consume")
        parameters, body = await parameters_and_body(collector, request)
        locations = requested_locations(parameters, body, with_offset=False, list_name="topicPartitions")
        at = read_time(path_parts(request, b"/offsets/", 1)[0])
        committed = isolation_of(parameters, body) != "read_uncommitted"
        await check_locations(collector, allowed, locations)
        return json_response(await asyncio.to_thread(offsets_at, admin, locations, at, committed=committed))

    return routes


def fetch_from(
    collector: Collector, locations: list[TopicPartition], timeout_s: float, limit: int, isolation: str
) -> list[Any]:
    """Read until there is a record, then whatever else is available."""
    consumer = Consumer({**collector.kafka_config, **READER, "isolation.level": isolation})
    try:
        for location in locations:
            lowest, end = consumer.get_watermark_offsets(location, timeout=KAFKA_TIMEOUT_S)
            if not lowest <= location.offset <= end:
                raise Problem(
                    416,
                    "offset-out-of-range",
                    f"Topic {location.topic!r}, partition {location.partition} has the offsets {lowest} to {end - 1}; "
                    f"{location.offset} is not among them.",
                    earliest=lowest,
                    latest=end,
                )
        consumer.assign(locations)
        return gather(consumer, len(locations), timeout_s, limit, collector.limits.body)
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


def offsets_at(
    admin: KafkaAdmin, locations: list[TopicPartition], at: int | str, *, committed: bool = True
) -> list[dict[str, Any]]:
    """The first offset at or after a time in each partition; the end where no record is as late."""
    pairs = [(location.topic, location.partition) for location in locations]
    try:
        found = read_offsets(admin, pairs, at if isinstance(at, int) else SPECS[at], committed=committed)
        if NO_SUCH_OFFSET in found.values():
            ends = read_offsets(admin, pairs, LATEST, committed=committed)
            found = {pair: ends[pair] if offset == NO_SUCH_OFFSET else offset for pair, offset in found.items()}
    except KafkaUnreachable as error:
        raise Problem(503, "kafka-unreachable", f"{error} Try again.", retry_after_s=2) from None
    except TopicError as error:
        raise Problem(502, "refused-by-kafka", str(error)) from None
    return [{"topic": topic, "partition": partition, "offset": found[topic, partition]} for topic, partition in pairs]


REBALANCES = "group-rebalances"
"""The kind of problem of a commit by a member that has to join its group again first."""


def kafka_problem(error: KafkaException) -> Problem:
    """An error of Kafka while reading, as a problem."""
    reason: KafkaError = error.args[0]
    match reason.code():
        case KafkaError.UNKNOWN_TOPIC_OR_PART | KafkaError._UNKNOWN_TOPIC | KafkaError._UNKNOWN_PARTITION:
            return Problem(404, "unknown-topic", f"Kafka replied: {reason.str()}.")
        case KafkaError._AUTO_OFFSET_RESET | KafkaError.OFFSET_OUT_OF_RANGE:
            return Problem(416, "offset-out-of-range", f"Kafka replied: {reason.str()}.")
        case KafkaError.REBALANCE_IN_PROGRESS | KafkaError.ILLEGAL_GENERATION | KafkaError.UNKNOWN_MEMBER_ID:
            return Problem(
                409,
                REBALANCES,
                f"The group is rebalancing, and nothing was committed: {reason.str()}. Read again: "
                "what was given and not committed is given to whoever gets its partition.",
            )
        case KafkaError.TOPIC_AUTHORIZATION_FAILED | KafkaError.GROUP_AUTHORIZATION_FAILED:
            return Problem(502, "refused-by-kafka", f"Kafka replied: {reason.str()}.")
    return Problem(503, "kafka-unreachable", f"Kafka did not answer: {reason.str()}. Try again.", retry_after_s=2)
