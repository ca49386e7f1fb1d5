"""What requests of the reading routes name: locations in topics, from the query string or from a body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import TopicPartition
from starlette.requests import Request

from infra.rest.problems import Problem
from master_dataset.collector.bodies import beside_loop, invalid_body, parse_within, read_body
from master_dataset.collector.context import Collector
from master_dataset.collector.parameters import one_of, query, whole_number
from master_dataset.collector.permissions import Permissions

MAX_PARTITION = 2**31 - 1
MAX_OFFSET = 2**63 - 1
MAX_TIMEOUT_MS = 60_000
DEFAULT_TIMEOUT_MS = 1000
MAX_LIMIT = 10_000
DEFAULT_LIMIT = 500
MAX_VALUES = 10 * MAX_LIMIT
"""Commas, colons and brackets of a body: what so many locations need. A request that waits holds its values."""
ISOLATIONS = ("read_committed", "read_uncommitted")


async def parameters_and_body(collector: Collector, request: Request) -> tuple[dict[str, str], Any]:
    """The query string and the parsed body; None where there is no body."""
    with collector.budget.charge() as charge:
        body = await read_body(request, collector.limits.of_small_body, charge, collector.parsing)
        if not body.strip():
            return query(request), None
        return query(request), await beside_loop(
            collector.parsing, body, parse_within, body, collector.limits.of_small_body, charge, MAX_VALUES
        )


def waiting(parameters: Mapping[str, str], body: Any) -> tuple[float, int]:
    """How long to wait for records, in seconds, and how many to give at most."""
    given = body if isinstance(body, dict) else {}
    timeout = given.get("timeout", parameters.get("timeout", DEFAULT_TIMEOUT_MS))
    limit = given.get("limit", parameters.get("limit", DEFAULT_LIMIT))
    timeout_s = whole_number("timeout (milliseconds)", timeout, 0, MAX_TIMEOUT_MS) / 1000
    return timeout_s, whole_number("limit", limit, 1, MAX_LIMIT)


def isolation_of(parameters: Mapping[str, str], body: Any) -> str | None:
    """Which records of transactions are read, if the request says so: `read_committed` or `read_uncommitted`."""
    given = body.get("isolation") if isinstance(body, dict) else None
    given = parameters.get("isolation") if given is None else given
    return None if given is None else one_of("isolation", str(given), ISOLATIONS)


def requested_locations(
    parameters: Mapping[str, str], body: Any, *, with_offset: bool, list_name: str
) -> list[TopicPartition]:
    """The locations that a request names: query parameters, one object, an array, or an object with a list of them.

    `?topic=web&partition=0`, `{"topic": "web", "partition": 0}`, `[{...}, {...}]` or `{"<list_name>": [{...}]}`.
    """
    if isinstance(body, dict) and list_name in body:
        given = body[list_name]
    elif body is None:
        given = [dict(parameters)]
    else:
        given = body if isinstance(body, list) else [body]
    if not isinstance(given, list) or not given or len(given) > MAX_LIMIT:
        raise invalid_body(list_name, f"1 to {MAX_LIMIT} locations are expected", status=400)
    return [_location(location, index, with_offset=with_offset) for index, location in enumerate(given)]


def _location(given: Any, index: int, *, with_offset: bool) -> TopicPartition:
    needed = ["topic", "partition", *(["offset"] if with_offset else [])]
    if not isinstance(given, dict) or any(name not in given for name in needed):
        raise Problem(
            400,
            "invalid-parameter",
            f"Name {', '.join(needed)}, as query parameters or as JSON; location {index} lacks one of them.",
            where=f"[{index}]",
        )
    topic = given["topic"]
    if not isinstance(topic, str) or not topic:
        raise invalid_body(f"[{index}].topic", "a topic is a string", status=400)
    partition = whole_number("partition", given["partition"], 0, MAX_PARTITION)
    if not with_offset:
        return TopicPartition(topic, partition)
    return TopicPartition(topic, partition, whole_number("offset", given["offset"], 0, MAX_OFFSET))


async def check_locations(collector: Collector, allowed: Permissions, locations: list[TopicPartition]) -> None:
    """Raise the problem 403 for a topic that the key may not use, 404 for what does not exist, 400 for a repetition."""
    allowed.check_topics(location.topic for location in locations)
    named = [(location.topic, location.partition) for location in locations]
    if len(set(named)) != len(named):
        raise Problem(400, "invalid-parameter", "A partition is named twice. Name each one once.")
    for topic, partition in named:
        await collector.topics.check_partition(topic, partition)
