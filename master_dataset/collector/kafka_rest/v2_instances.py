"""REST Proxy v2: consumer instances, their subscriptions, assignments and positions."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from confluent_kafka import TopicPartition
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from infra.rest.problems import Problem
from infra.rest.responses import wrong_parameter
from master_dataset.collector.bodies import invalid_body
from master_dataset.collector.context import Collector
from master_dataset.collector.kafka_rest.consume import check_names
from master_dataset.collector.kafka_rest.consumers import Consumers
from master_dataset.collector.kafka_rest.instance import Instance
from master_dataset.collector.kafka_rest.requests import (
    MAX_TIMEOUT_MS,
    check_locations,
    parameters_and_body,
    requested_locations,
)
from master_dataset.collector.kafka_rest.topic_pattern import matching_topics
from master_dataset.collector.kafka_rest.v2_media import FORMATS, PREFIX, V2Route, check_media, empty, reply
from master_dataset.collector.parameters import flag, whole_number
from master_dataset.collector.permissions import Permissions

INSTANCE = "/consumers/{group}/instances/{instance}"
RESETS = {"earliest": "earliest", "latest": "latest", "none": "error"}
DEFAULT_TIMEOUT_MS = 1000
MAX_FETCH_BYTES = 10_000_000
OPTIONS = {
    "name", "format", "auto.offset.reset", "auto.commit.enable", "consumer.request.timeout.ms", "fetch.min.bytes",
    "isolation.level",
}  # fmt: skip


@dataclass
class Proxied:
    """What a client asked for when it made its instance, and what it reads."""

    format: str
    auto_commit: bool
    timeout_ms: int
    min_bytes: int
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    is_assigned: bool = False


def instance_routes(collector: Collector, consumers: Consumers) -> APIRouter:
    """`/consumers/...`, without what reads and commits."""
    routes = APIRouter(prefix=PREFIX, tags=["REST Proxy v2"], route_class=V2Route)

    @routes.post("/consumers/{group}")
    async def create(request: Request, group: str) -> Response:
        """Make a consumer instance; `base_uri` is where the other requests about it go.

        `{"name", "format", "auto.offset.reset", "auto.commit.enable", "consumer.request.timeout.ms",
        "fetch.min.bytes"}`, all optional. 40902: there is one of this name.
        """
        allowed = collector.allow(request, "consume")
        check_media(request)
        _, body = await parameters_and_body(collector, request)
        name, reset, proxied = _options(body)
        check_names(group, name)
        config = {"fetch.min.bytes": max(1, proxied.min_bytes)}
        consumers.create(group, name, reset, allowed.owner, proxied, config)
        base = f"{str(request.base_url).rstrip('/')}{PREFIX}/consumers/{group}/instances/{name}"
        return reply({"instance_id": name, "base_uri": base})

    @routes.delete(INSTANCE)
    async def delete(request: Request, group: str, instance: str) -> Response:
        """Let the instance leave its group. With auto.commit.enable, what it was given is committed."""
        _, found = find(collector, consumers, request, group, instance)
        if found.proxied.auto_commit:
            await consumers.use(found, found.commit_held)
        await consumers.delete(group, instance)
        return empty()

    @routes.post(f"{INSTANCE}/subscription")
    async def subscribe(request: Request, group: str, instance: str) -> Response:
        """Read `{"topics": [...]}`, or the topics that `{"topic_pattern": "shop-.*"}` matches, also later ones."""
        allowed, found = find(collector, consumers, request, group, instance)
        _, body = await parameters_and_body(collector, request)
        topics, pattern = _subscription(body)
        if found.proxied.is_assigned:
            raise Problem(
                409,
                "subscribed-otherwise",
                "Subscription to topics, partitions and pattern are mutually exclusive: this instance has partitions "
                "assigned. Delete its subscription first.",
            )
        allowed.check_topics(topics)
        for topic in topics:
            await collector.topics.partitions(topic)
        if pattern is not None:
            topics = await matching_topics(collector.topics, allowed, pattern)
        found.proxied.topics, found.proxied.pattern = topics, pattern
        return empty()

    @routes.get(f"{INSTANCE}/subscription")
    async def subscription(request: Request, group: str, instance: str) -> Response:
        """The topics that the instance has subscribed to."""
        _, found = find(collector, consumers, request, group, instance)
        return reply({"topics": [] if found.proxied.is_assigned else list(found.proxied.topics)})

    @routes.delete(f"{INSTANCE}/subscription")
    async def unsubscribe(request: Request, group: str, instance: str) -> Response:
        """Read nothing any more."""
        _, found = find(collector, consumers, request, group, instance)
        await consumers.use(found, found.unsubscribe)
        found.proxied.topics, found.proxied.pattern, found.proxied.is_assigned = (), None, False
        return empty()

    @routes.post(f"{INSTANCE}/assignments")
    async def assign(request: Request, group: str, instance: str) -> Response:
        """Read `{"partitions": [{topic, partition}]}`, without sharing them with the group."""
        allowed, found = find(collector, consumers, request, group, instance)
        locations = await _locations(collector, request, allowed, "partitions")
        if found.proxied.topics and not found.proxied.is_assigned:
            raise Problem(
                409,
                "subscribed-otherwise",
                "Subscription to topics, partitions and pattern are mutually exclusive: this instance has subscribed "
                "to topics. Delete its subscription first.",
            )
        await consumers.use(found, found.assign, locations)
        found.proxied.is_assigned = True
        found.proxied.topics = tuple(dict.fromkeys(each.topic for each in locations))
        return empty()

    @routes.get(f"{INSTANCE}/assignments")
    async def assignments(request: Request, group: str, instance: str) -> Response:
        """The partitions that the instance reads now."""
        _, found = find(collector, consumers, request, group, instance)
        held = await consumers.use(found, found.assigned)
        return reply({"partitions": [{"topic": topic, "partition": number} for topic, number in held]})

    @routes.post(f"{INSTANCE}/positions")
    async def seek(request: Request, group: str, instance: str) -> Response:
        """Go on from `{"offsets": [{topic, partition, offset}]}`. 40903: the instance does not have the partition."""
        allowed, found = find(collector, consumers, request, group, instance)
        locations = await _locations(collector, request, allowed, "offsets", with_offset=True)
        await consumers.use(found, found.seek, locations)
        return empty()

    @routes.post(f"{INSTANCE}/positions/beginning")
    async def seek_to_beginning(request: Request, group: str, instance: str) -> Response:
        """Go to the first offset of `{"partitions": [{topic, partition}]}`."""
        allowed, found = find(collector, consumers, request, group, instance)
        locations = await _locations(collector, request, allowed, "partitions")
        await consumers.use(found, found.seek_to, locations, end=False)
        return empty()

    @routes.post(f"{INSTANCE}/positions/end")
    async def seek_to_end(request: Request, group: str, instance: str) -> Response:
        """Go to the end of `{"partitions": [{topic, partition}]}`, as it is now."""
        allowed, found = find(collector, consumers, request, group, instance)
        locations = await _locations(collector, request, allowed, "partitions")
        await consumers.use(found, found.seek_to, locations, end=True)
        return empty()

    return routes


def find(
    collector: Collector, consumers: Consumers, request: Request, group: str, name: str, *, checks_media: bool = True
) -> tuple[Permissions, Instance]:
    """What the key may use, and an instance that a client of REST Proxy v2 made; 40403 where there is none."""
    allowed = collector.allow(request, "consume")
    if checks_media:
        check_media(request)
    check_names(group, name)
    found = consumers.known(group, name)
    allowed.check_topics(consumers.topics_of(group, name))
    if found.proxied is None:
        raise Problem(
            404,
            "unknown-consumer",
            f"The consumer instance {name!r} of group {group!r} was made by /consume, which is not REST Proxy v2.",
        )
    return allowed, found


def _options(body: Any) -> tuple[str, str, Proxied]:
    given: dict[str, Any] = {} if body is None else body
    if not isinstance(given, dict):
        raise invalid_body("", 'an object like {"name": "a", "format": "json"} is expected')
    if unknown := given.keys() - OPTIONS:
        raise invalid_body(min(unknown), f"there is no such member; there are {', '.join(sorted(OPTIONS))}")
    name = given.get("name") or f"rest-consumer-{uuid.uuid4()}"
    if not isinstance(name, str):
        raise invalid_body("name", "a name is a string")
    try:
        format = _one_of(given, "format", "binary", FORMATS)
        reset = RESETS[_one_of(given, "auto.offset.reset", "latest", tuple(RESETS))]
        _one_of(given, "isolation.level", "read_committed", ("read_committed",))
        auto_commit = flag("auto.commit.enable", str(given.get("auto.commit.enable", "true")))
        timeout = given.get("consumer.request.timeout.ms", DEFAULT_TIMEOUT_MS)
        timeout_ms = whole_number("consumer.request.timeout.ms", timeout, -1, MAX_TIMEOUT_MS)
        min_bytes = whole_number("fetch.min.bytes", given.get("fetch.min.bytes", -1), -1, MAX_FETCH_BYTES)
    except Problem as problem:
        raise Problem(422, "invalid-consumer", f"Invalid consumer configuration: {problem.detail}") from None
    timeout_ms = DEFAULT_TIMEOUT_MS if timeout_ms < 0 else timeout_ms
    return name, reset, Proxied(format, auto_commit, timeout_ms, max(0, min_bytes))


def _one_of(given: dict[str, Any], name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = given.get(name)
    value = default if value is None else value
    if not isinstance(value, str) or value.lower() not in allowed:
        raise wrong_parameter(name, " or ".join(allowed), str(value))
    return value.lower()


def _subscription(body: Any) -> tuple[tuple[str, ...], str | None]:
    given = body if isinstance(body, dict) else {}
    topics, pattern = given.get("topics"), given.get("topic_pattern")
    if isinstance(pattern, str) and pattern and topics is None:
        return (), pattern
    if (
        pattern is not None
        or not isinstance(topics, list)
        or not topics
        or not all(isinstance(each, str) and each for each in topics)
    ):
        raise invalid_body("topics", 'an object like {"topics": ["a"]} or {"topic_pattern": "a.*"} is expected')
    return tuple(dict.fromkeys(topics)), None


async def _locations(
    collector: Collector, request: Request, allowed: Permissions, list_name: str, *, with_offset: bool = False
) -> list[TopicPartition]:
    _, body = await parameters_and_body(collector, request)
    if not isinstance(body, dict) or not isinstance(body.get(list_name), list):
        raise invalid_body(list_name, f'an object like {{"{list_name}": [...]}} is expected')
    locations = requested_locations({}, body, with_offset=with_offset, list_name=list_name)
    await check_locations(collector, allowed, locations)
    return locations
