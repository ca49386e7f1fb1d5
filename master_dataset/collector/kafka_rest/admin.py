"""Administration: create, describe, alter and delete topics; consumer groups with their lag."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from infra.rest.problems import Problem
from infra.rest.responses import json_response
from master_dataset.collector.bodies import beside_loop, invalid_body, parse_within, read_body
from master_dataset.collector.context import Collector
from master_dataset.collector.kafka_rest.fetch import read_time
from master_dataset.collector.parameters import flag, query
from master_dataset.collector.permissions import Permissions
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.errors import KafkaUnreachable
from master_dataset.kafka.groups import delete_group, describe_group, list_groups
from master_dataset.kafka.rewind import plan_rewind, rewind
from master_dataset.kafka.topics import (
    EARLIEST,
    LATEST,
    TopicPlan,
    alter_topic,
    compare_topics,
    create_topic,
    delete_topic,
    describe_topic,
    existing_topics,
    plan_topics,
    topic_configs,
)

Hours = float | Literal["unlimited"]
Bytes = int | Literal["unlimited"]
Body = TypeVar("Body", bound=BaseModel)


class NewTopicBody(BaseModel):
    """A topic to create."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(pattern=r"^[a-zA-Z0-9._-]{1,240}$", description="Letters, digits, '.', '_' and '-'.")
    partitions: int = Field(default=3, ge=1, le=10_000)
    retention_hours: Hours = Field(default=7 * 24, description='How long records are kept, or "unlimited".')
    retention_bytes: Bytes = Field(default="unlimited", description="How many bytes a partition keeps.")
    compacted: bool = Field(default=False, description="Keep the last record of each key instead of all for a time.")


class AlterTopicBody(BaseModel):
    """What to change; what is left out stays."""

    model_config = ConfigDict(extra="forbid", strict=True)

    partitions: int | None = Field(default=None, ge=1, le=10_000, description="More than now; there is no way back.")
    retention_hours: Hours | None = None
    retention_bytes: Bytes | None = None
    compacted: bool | None = None


class OffsetBody(BaseModel):
    """The offset of the next record that a group reads in a partition."""

    model_config = ConfigDict(extra="forbid", strict=True)

    topic: str = Field(min_length=1)
    partition: int = Field(ge=0, le=2**31 - 1)
    offset: int = Field(ge=0, le=2**63 - 1)


class RewindBody(BaseModel):
    """Where a consumer group is to go."""

    model_config = ConfigDict(extra="forbid", strict=True)

    to: str | int | None = Field(default=None, description='"beginning", "end", or a time: ISO, or milliseconds.')
    offsets: list[OffsetBody] | None = Field(default=None, min_length=1, max_length=10_000)
    topics: list[str] = Field(default=[], max_length=1000)
    execute: bool = Field(default=False, description="Without it, what would change is shown and nothing changes.")


def admin_routes(collector: Collector) -> APIRouter:
    """`/topics` for everybody with a key, `/admin/...` for administrators."""
    routes = APIRouter(tags=["admin"])

    @routes.get("/topics")
    async def topics(request: Request) -> Response:
        """All topics with their partitions, and where the broker differs from a declared source."""
        allowed = collector.allow(request, "produce", "consume", "admin")
        found = await _run(_topics, collector)
        return json_response([each for each in found if allowed.allows_topic(each["topic"])])

    @routes.post("/admin/topics", status_code=201, openapi_extra=_body(NewTopicBody))
    async def create(request: Request) -> Response:
        """Create a topic."""
        allowed = collector.allow(request, "admin")
        topic = await _read(collector, request, NewTopicBody)
        allowed.check_topics([topic.name])
        _check_name(topic.name)
        _check_retention(topic.retention_hours, topic.retention_bytes)
        configs = _configs(topic.retention_hours, topic.retention_bytes, compacted=topic.compacted)
        if not await _run(create_topic, collector.admin, TopicPlan(topic.name, topic.partitions, configs)):
            raise Problem(409, "topic-exists", f"There is a topic {topic.name!r} already. PATCH alters it.")
        collector.topics.forget(topic.name)
        return json_response(await _run(describe_topic, collector.admin, topic.name), 201)

    @routes.get("/admin/topics/{topic}")
    async def describe(request: Request, topic: str) -> Response:
        """Partitions with their first and next offsets, and the configuration."""
        collector.allow(request, "admin").check_topics([topic])
        await collector.topics.partitions(topic)
        return json_response(await _run(describe_topic, collector.admin, topic))

    @routes.patch("/admin/topics/{topic}", openapi_extra=_body(AlterTopicBody))
    async def alter(request: Request, topic: str) -> Response:
        """Change partitions, retention or compaction. A source's declaration is not changed by this."""
        collector.allow(request, "admin").check_topics([topic])
        change = await _read(collector, request, AlterTopicBody)
        _check_name(topic)
        _check_retention(change.retention_hours, change.retention_bytes)
        partitions = await collector.topics.partitions(topic)
        if change.partitions is not None and change.partitions < partitions:
            raise Problem(
                422,
                "fewer-partitions",
                f"Topic {topic!r} has {partitions} partitions; Kafka cannot reduce them. Create a new topic.",
                where="partitions",
            )
        more = change.partitions if change.partitions != partitions else None
        await _run(alter_topic, collector.admin, topic, more, _changed_configs(change))
        collector.topics.forget(topic)
        return json_response(await _run(describe_topic, collector.admin, topic))

    @routes.delete("/admin/topics/{topic}")
    async def delete(request: Request, topic: str) -> Response:
        """Delete a topic and its records. The topics of a declared source need `?force=true`."""
        collector.allow(request, "admin").check_topics([topic])
        _check_name(topic)
        await collector.topics.partitions(topic)
        source = collector.declarations.source_of_topic(topic)
        if source and not flag("force", query(request).get("force", "")):
            loss = (
                "its dead letters would be gone, and they are not sent again"
                if topic == source.dead_topic
                else "its records would be gone from Kafka, and the archiver would refuse the source"
            )
            raise Problem(
                409,
                "declared-topic",
                f"Topic {topic!r} belongs to the source {source.name!r}: {loss}. If that is what you want, add "
                "?force=true.",
            )
        await _run(delete_topic, collector.admin, topic)
        collector.topics.forget(topic)
        return json_response({"deleted": topic})

    @routes.get("/admin/groups")
    async def groups(request: Request) -> Response:
        """All consumer groups and their states. Not for a key that is limited to some sources or topics."""
        collector.allow(request, "admin", "consume").check_unlimited("the list of all consumer groups")
        return json_response(await _run(list_groups, collector.admin))

    @routes.get("/admin/groups/{group}")
    async def group(request: Request, group: str) -> Response:
        """A group's members, and for each partition the committed offset, the end and the lag."""
        return json_response(await _group(collector, collector.allow(request, "admin", "consume"), group))

    @routes.delete("/admin/groups/{group}")
    async def remove_group(request: Request, group: str) -> Response:
        """Forget a group and what it committed. It must have no members."""
        await _group(collector, collector.allow(request, "admin"), group)
        await _run(delete_group, collector.admin, group)
        return json_response({"deleted": group})

    @routes.post("/admin/groups/{group}/rewind", openapi_extra=_body(RewindBody))
    async def rewind_group(request: Request, group: str) -> Response:
        """Give a group other committed offsets: `to` a place or a time, or the `offsets` of single partitions.

        `{"to": "beginning"}`, `"end"`, an ISO time or milliseconds since 1970; `topics` limits it, or gives a new group
        its first offsets. Without `"execute": true` it only shows the moves. 409: the group has members.
        """
        allowed = collector.allow(request, "admin")
        wanted = await _read(collector, request, RewindBody)
        target = _target(wanted)
        if isinstance(target, dict):
            allowed.check_topics({topic for topic, _ in target})
        allowed.check_topics(wanted.topics)
        if await _run(describe_group, collector.admin, group) is not None:
            await _group(collector, allowed, group)  # the key may use all of its topics
        moves = await _run(plan_rewind, collector.admin, group, target, wanted.topics)
        if wanted.execute:
            await _run(rewind, collector.admin, group, moves)
        return json_response({"group": group, "executed": wanted.execute, "moves": [each._asdict() for each in moves]})

    return routes


def _target(wanted: RewindBody) -> Any:
    """Where a group is to go, as `plan_rewind` takes it."""
    if (wanted.to is None) == (wanted.offsets is None):
        raise invalid_body("to", "a rewind has either to or offsets")
    if wanted.offsets is not None:
        if wanted.topics:
            raise invalid_body("topics", "offsets name their topics themselves")
        return {(each.topic, each.partition): each.offset for each in wanted.offsets}
    named = {"beginning": EARLIEST, "end": LATEST}
    return named[str(wanted.to)] if wanted.to in named else read_time(str(wanted.to))


async def _run(do: Any, *arguments: Any) -> Any:
    """Run in a thread. What Kafka refuses is a 409; no answer from Kafka is a 503."""
    try:
        return await asyncio.to_thread(do, *arguments)
    except KafkaUnreachable as error:
        raise Problem(503, "kafka-unreachable", str(error), retry_after_s=2) from None
    except MasterDatasetError as error:
        raise Problem(409, "refused-by-kafka", str(error)) from None


async def _group(collector: Collector, allowed: Permissions, group: str) -> Any:
    """A group as it is described, or the problem 404; 403 where the key may not use one of its topics."""
    found = await _run(describe_group, collector.admin, group)
    if found is None:
        raise Problem(404, "unknown-group", f"There is no consumer group {group[:200]!r}. See GET /admin/groups.")
    held = [each for member in found["members"] for each in member["partitions"]]
    allowed.check_topics({each["topic"] for each in (*found["partitions"], *held)})
    return found


def _topics(collector: Collector) -> list[dict[str, Any]]:
    found = existing_topics(collector.admin)
    plans = plan_topics(collector.declarations.sources.values(), collector.settings.dead_letter_retention_days)
    differences = compare_topics(collector.admin, plans)
    named = sorted({*found, *(difference.topic for difference in differences)})
    return [
        {
            "topic": topic,
            "partitions": found.get(topic, 0),
            "source": source.name if (source := collector.declarations.source_of_topic(topic)) else None,
            "differences": [
                {"what": difference.what, "declared": difference.declared, "found": difference.found}
                for difference in differences
                if difference.topic == topic
            ],
        }
        for topic in named
        if not topic.startswith("__")
    ]


def _check_name(topic: str) -> None:
    if topic.startswith("__") or topic in (".", ".."):
        raise Problem(403, "internal-topic", f"{topic!r} is a name that Kafka reserves.")


def _check_retention(hours: Hours | None, size: Bytes | None) -> None:
    for name, value in (("retention_hours", hours), ("retention_bytes", size)):
        if isinstance(value, int | float) and not 0 < value < 2**53:
            raise Problem(422, "invalid-body", f'{name} is {value}; it should be positive, or "unlimited".', where=name)


def _configs(hours: Hours | None, size: Bytes | None, *, compacted: bool | None) -> dict[str, str]:
    return topic_configs(
        hours if isinstance(hours, int | float) else None,
        size if isinstance(size, int) else None,
        compacted=bool(compacted),
    )


def _changed_configs(change: AlterTopicBody) -> dict[str, str]:
    """The configuration that the change names."""
    whole = _configs(change.retention_hours, change.retention_bytes, compacted=change.compacted)
    asked = {
        "retention.ms": change.retention_hours,
        "retention.bytes": change.retention_bytes,
        "cleanup.policy": change.compacted,
    }
    return {name: whole[name] for name, value in asked.items() if value is not None}


async def _read(collector: Collector, request: Request, model: type[Body]) -> Body:
    """The body as `model`. FastAPI would parse it before the key was checked."""
    with collector.budget.charge() as charge:
        received = await read_body(request, collector.limits.of_small_body, charge, collector.parsing)
        limits = collector.limits.of_small_body
        body = await beside_loop(collector.parsing, received, parse_within, received, limits, charge)
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise invalid_body(".".join(str(part) for part in first["loc"]), str(first["msg"])) from None


def _body(model: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI description of a body that `_read` parses."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}
