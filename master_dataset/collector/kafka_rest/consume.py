"""Reading as a consumer group: `/consume`, `/commit`, `/committed`, `/delete-consumer`, `/consumers`."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from infra.rest.problems import Problem
from infra.rest.responses import json_response, wrong_parameter
from master_dataset.collector.bodies import invalid_body
from master_dataset.collector.context import Collector, get_and_post
from master_dataset.collector.kafka_rest.consumers import Consumers
from master_dataset.collector.kafka_rest.requests import (
    check_locations,
    isolation_of,
    parameters_and_body,
    requested_locations,
    waiting,
)
from master_dataset.collector.kafka_rest.topic_pattern import matching_topics
from master_dataset.collector.parameters import flag, one_of, path_parts

NAME = re.compile(r"[A-Za-z0-9._:-]{1,200}")
RESETS = ("earliest", "latest", "none")


def consuming_routes(collector: Collector, consumers: Consumers) -> APIRouter:
    """The routes of consumer groups, which remember their offsets."""
    routes = APIRouter(tags=["consume"])

    @get_and_post(routes, "/consume/{group}/{instance}")
    @get_and_post(routes, "/consume/{group}/{instance}/{topic}")
    async def consume(request: Request) -> Response:
        """The next records of a topic for this group; the instance is made by its first request.

        Header `Kafka-Auto-Offset-Reset`: where a group without a committed offset begins: `earliest` (default),
        `latest`, or `none` (an error); another one than the instance was made with is 409. Header
        `Kafka-Enable-Auto-Commit`: `true` commits at each call what the call before gave, because asking for more
        says that it arrived; default `false`: use /commit. Waits up to `timeout` milliseconds, gives at most `limit`,
        fewer where they are as large as a body may be. An error that came with records is raised by the next call.
        `isolation`: `read_committed` (default) or `read_uncommitted`, fixed by the first request, too.
        Several topics: leave the topic out of the path and send `{"topics": [...]}`, or `{"topic_pattern": "shop-.*"}`
        for all that match at each call.
        """
        allowed = collector.allow(request, "consume")
        group, name, *in_path = path_parts(request, b"/consume/", 3, at_least=2)
        check_names(group, name)
        parameters, body = await parameters_and_body(collector, request)
        pattern = None if in_path else _pattern(parameters, body)
        if pattern is not None:
            topics = await matching_topics(collector.topics, allowed, pattern)
        else:
            topics = _topics(in_path, body)
        timeout_s, limit = waiting(parameters, body)
        isolation = isolation_of(parameters, body)
        given = request.headers.get("kafka-auto-offset-reset")
        reset = None if given is None else one_of("Kafka-Auto-Offset-Reset", given, RESETS)
        auto_commit = flag("Kafka-Enable-Auto-Commit", request.headers.get("kafka-enable-auto-commit", "false"))
        allowed.check_topics(topics)
        for topic in topics:
            await collector.topics.partitions(topic)
        allowed.check_topics(consumers.topics_of(group, name))
        instance = consumers.get(group, name, "error" if reset == "none" else reset, isolation, allowed.owner)
        if not topics:  # none matches yet
            await asyncio.sleep(timeout_s)
            return json_response([])
        records = await consumers.use(instance, instance.consume, topics, timeout_s, limit, auto_commit=auto_commit)
        return json_response(records)

    @get_and_post(routes, "/commit/{group}/{instance}")
    async def commit(request: Request) -> Response:
        """Commit `{topic, partition, offset}` or an array of them; without a body, everything that was consumed.

        The offset is that of the next record to read.
        """
        allowed = collector.allow(request, "consume")
        group, name = _names(request, b"/commit/")
        parameters, body = await parameters_and_body(collector, request)
        instance = consumers.known(group, name)
        allowed.check_topics(consumers.topics_of(group, name))
        locations = None
        if body is not None or "topic" in parameters:
            locations = requested_locations(parameters, body, with_offset=True, list_name="topicPartitionOffsets")
            await check_locations(collector, allowed, locations)
        return json_response(await consumers.use(instance, instance.commit, locations))

    @get_and_post(routes, "/committed/{group}/{instance}")
    async def committed(request: Request) -> Response:
        """The committed offset of `{topic, partition}` or an array of them; null where there is none."""
        allowed = collector.allow(request, "consume")
        group, name = _names(request, b"/committed/")
        parameters, body = await parameters_and_body(collector, request)
        locations = requested_locations(parameters, body, with_offset=False, list_name="topicPartitions")
        await check_locations(collector, allowed, locations)
        return json_response(await consumers.committed(group, name, locations))

    @routes.delete("/delete-consumer/{group}/{instance}")
    @get_and_post(routes, "/delete-consumer/{group}/{instance}")
    async def delete_consumer(request: Request) -> Response:
        """Let the instance leave its group. What it has not committed is read again by others."""
        allowed = collector.allow(request, "consume")
        group, name = _names(request, b"/delete-consumer/")
        allowed.check_topics(consumers.topics_of(group, name))
        await consumers.delete(group, name)
        return json_response({"deleted": {"group": group, "instance": name}})

    @routes.get("/consumers")
    async def list_consumers(request: Request) -> Response:
        """The consumer instances that the collector keeps, by group."""
        allowed = collector.allow(request, "consume", "admin")
        return json_response(consumers.by_group(allowed.allows_topic))

    return routes


def _names(request: Request, prefix: bytes) -> tuple[str, str]:
    group, name = path_parts(request, prefix, 2)
    check_names(group, name)
    return group, name


def check_names(group: str, name: str) -> None:
    """Refuse names that would not be readable in Kafka's own tools."""
    for what, given in (("group", group), ("instance", name)):
        if not NAME.fullmatch(given):
            raise wrong_parameter(what, "1 to 200 letters, digits, '.', '_', ':' or '-'", given)


def _pattern(parameters: dict[str, str], body: Any) -> str | None:
    """The topics by a regular expression; None where they are named."""
    given = body.get("topic_pattern") if isinstance(body, dict) else parameters.get("topic_pattern")
    if given is None:
        return None
    if not isinstance(given, str) or not given or (isinstance(body, dict) and "topics" in body):
        raise invalid_body("topic_pattern", "a regular expression is expected, and no topics beside it", status=400)
    return given


def _topics(in_path: list[str], body: Any) -> tuple[str, ...]:
    if in_path:
        return (in_path[0],)
    given = body.get("topics") if isinstance(body, dict) else None
    if given is None:
        raise Problem(
            400,
            "invalid-parameter",
            'Name a topic in the path, or {"topics": [...]} or {"topic_pattern": "shop-.*"} in the body.',
        )
    if not isinstance(given, list) or not given or not all(isinstance(topic, str) and topic for topic in given):
        raise invalid_body("topics", "an array of names of topics is expected", status=400)
    return tuple(dict.fromkeys(given))
