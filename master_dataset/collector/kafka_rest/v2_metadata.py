"""REST Proxy v2: topics, their partitions, and brokers."""

from __future__ import annotations

import asyncio
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from infra.rest.problems import Problem
from master_dataset.collector.context import Collector
from master_dataset.collector.kafka_rest.fetch import kafka_problem
from master_dataset.collector.kafka_rest.v2_media import PREFIX, V2Route, check_media, reply
from master_dataset.collector.parameters import whole_number
from master_dataset.collector.permissions import Permissions
from master_dataset.collector.reserved import KAFKAS_PREFIX
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.errors import KafkaUnreachable
from master_dataset.kafka.topics import EARLIEST, LATEST, describe_topic, read_offsets

TIMEOUT_S = 10.0
MAX_PARTITION = 2**31 - 1
ADMIN = "admin"


def metadata_routes(collector: Collector) -> APIRouter:
    """`/topics` and `/brokers`."""
    routes = APIRouter(prefix=PREFIX, tags=["REST Proxy v2"], route_class=V2Route)
    admin = collector.admin.with_timeout(TIMEOUT_S)

    def allow(request: Request) -> Permissions:
        allowed = collector.allow(request, "produce", "consume", ADMIN)
        check_media(request)
        return allowed

    @routes.get("/topics")
    async def topics(request: Request) -> Response:
        """The names of the topics that the key may use."""
        allowed = allow(request)
        names = await collector.topics.names()
        return reply([each for each in names if not each.startswith(KAFKAS_PREFIX) and allowed.allows_topic(each)])

    @routes.get("/topics/{topic}")
    async def one_topic(request: Request, topic: str) -> Response:
        """A topic with its partitions, and for a key with the scope `admin` its configuration."""
        allowed = allow(request)
        found = await _partitions(collector, allowed, topic)
        shows_configs = allowed.key is None or ADMIN in allowed.key.scopes
        configs = (await _ask(describe_topic, admin, topic))["configs"] if shows_configs else {}
        return reply({"name": topic, "configs": configs, "partitions": found})

    @routes.get("/topics/{topic}/partitions")
    async def partitions(request: Request, topic: str) -> Response:
        """The partitions of a topic, with their leaders and replicas."""
        return reply(await _partitions(collector, allow(request), topic))

    @routes.get("/topics/{topic}/partitions/{partition}")
    async def one_partition(request: Request, topic: str, partition: str) -> Response:
        """One partition."""
        found = await _partitions(collector, allow(request), topic)
        number = await _partition(collector, topic, partition)
        return reply(next(each for each in found if each["partition"] == number))

    @routes.get("/topics/{topic}/partitions/{partition}/offsets")
    async def offsets(request: Request, topic: str, partition: str) -> Response:
        """The first offset of a partition, and the one that its next record gets."""
        allow(request).check_topics([topic])
        location = (topic, await _partition(collector, topic, partition))
        first = await _ask(read_offsets, admin, [location], EARLIEST)
        end = await _ask(read_offsets, admin, [location], LATEST)
        return reply({"beginning_offset": first[location], "end_offset": end[location]})

    @routes.get("/brokers")
    async def brokers(request: Request) -> Response:
        """The ids of the brokers."""
        allow(request)
        found = await asyncio.to_thread(_cluster, collector, None)
        return reply({"brokers": sorted(found.brokers)})

    return routes


async def _partition(collector: Collector, topic: str, given: str) -> int:
    number = whole_number("partition", given, 0, MAX_PARTITION)
    await collector.topics.check_partition(topic, number)
    return number


async def _partitions(collector: Collector, allowed: Permissions, topic: str) -> list[dict[str, Any]]:
    allowed.check_topics([topic])
    await collector.topics.partitions(topic)
    found = (await asyncio.to_thread(_cluster, collector, topic)).topics[topic]
    return [
        {
            "partition": number,
            "leader": each.leader,
            "replicas": [
                {"broker": broker, "leader": broker == each.leader, "in_sync": broker in each.isrs}
                for broker in each.replicas
            ],
        }
        for number, each in sorted(found.partitions.items())
    ]


def _cluster(collector: Collector, topic: str | None) -> Any:
    """What librdkafka knows of the cluster: kafka-python does not tell replicas."""
    try:
        client = AdminClient(collector.kafka_config)
        return client.list_topics(timeout=TIMEOUT_S) if topic is None else client.list_topics(topic, timeout=TIMEOUT_S)
    except KafkaException as error:
        raise kafka_problem(error) from None


async def _ask(work: Any, *arguments: Any) -> Any:
    try:
        return await asyncio.to_thread(work, *arguments)
    except KafkaUnreachable as error:
        raise Problem(503, "kafka-unreachable", f"{error} Try again.", retry_after_s=2) from None
    except MasterDatasetError as error:
        raise Problem(502, "refused-by-kafka", str(error)) from None
