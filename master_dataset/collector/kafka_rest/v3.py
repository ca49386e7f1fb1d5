"""Confluent's REST Proxy v3: produce one record, or a stream of them whose outcomes come back one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import kafka.errors
import orjson
import structlog
from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from infra.rest.problems import Problem
from infra.rest.responses import json_response
from master_dataset.collector.bodies import check_record_size, parse_within
from master_dataset.collector.context import Collector
from master_dataset.collector.kafka_rest.concatenated_json import JsonObjects
from master_dataset.collector.kafka_rest.embedded_schemas import STRATEGIES, EmbeddedSchemas
from master_dataset.collector.kafka_rest.produce import check_topics
from master_dataset.collector.kafka_rest.v3_data import SCHEMA_TYPES, TYPES, V3Encoder
from master_dataset.collector.kafka_rest.v3_records import (
    V3Record,
    error_line,
    read_v3_record,
    stored_line,
    v3_record,
)
from master_dataset.collector.limits import BYTES_PER_RECORD, Charge
from master_dataset.collector.parameters import path_parts
from master_dataset.kafka.record import ANY_PARTITION
from master_dataset.registry.errors import RegistryError

MAX_JSON_BYTES_PER_BYTE = 2
"""A record may take twice its size as JSON: base64 takes four thirds."""
INVALID_SCHEMA, REGISTRY_REFUSED = 42205, 42207
"""Confluent's `error_code` of a record whose schema is none, and of one that the registry does not have or take."""
Handle = Callable[[Request], Coroutine[Any, Any, Response]]

log = structlog.get_logger()


class ConfluentRoute(APIRoute):
    """A route whose problems have the two members that Confluent's clients read, `error_code` and `message`."""

    def get_route_handler(self) -> Handle:
        """FastAPI's own way to change what a route does."""
        handle = super().get_route_handler()

        async def with_error_code(request: Request) -> Response:
            try:
                return await handle(request)
            except Problem as problem:
                problem.more = {"error_code": problem.status, "message": problem.detail, **problem.more}
                raise

        return with_error_code


class Cluster:
    """The id of the Kafka cluster, asked for once."""

    def __init__(self, collector: Collector) -> None:
        self._admin = collector.admin.with_timeout(10.0)
        self._id = ""

    async def id(self) -> str:
        """The cluster's id, or the problem 503."""
        if not self._id:
            try:
                self._id = str(await asyncio.to_thread(self._ask))
            except (kafka.errors.KafkaError, OSError) as error:
                raise Problem(503, "kafka-unreachable", f"Kafka does not answer: {error}.", retry_after_s=2) from None
        return self._id

    def _ask(self) -> Any:
        return self._admin.read(lambda client: client.describe_cluster())["cluster_id"]

    async def check(self, given: str) -> None:
        """Raise the problem 404 for another cluster."""
        if given != (known := await self.id()):
            raise Problem(404, "unknown-cluster", f"There is no cluster {given[:100]!r}. This one is {known!r}.")


def v3_routes(collector: Collector, schemas: EmbeddedSchemas) -> APIRouter:
    """`/v3/clusters` and `/v3/clusters/{cluster_id}/topics/{topic}/records`."""
    routes = APIRouter(prefix="/v3", tags=["REST Proxy v3"], route_class=ConfluentRoute)
    cluster = Cluster(collector)

    @routes.get("/clusters")
    async def clusters(request: Request) -> Response:
        """The Kafka cluster, whose id the other routes of v3 have in their path."""
        collector.allow(request, "produce", "consume", "admin")
        return json_response({"kind": "KafkaClusterList", "metadata": {}, "data": [_described(await cluster.id())]})

    @routes.get("/clusters/{cluster_id}")
    async def one_cluster(request: Request, cluster_id: str) -> Response:
        """The Kafka cluster."""
        collector.allow(request, "produce", "consume", "admin")
        await cluster.check(cluster_id)
        return json_response(_described(cluster_id))

    @routes.post("/clusters/{cluster_id}/topics/{topic}/records", openapi_extra=BODY)
    async def produce(request: Request) -> Response:
        """Store one record, or a stream of JSON objects, one after the other: each is answered as soon as it is stored.

        The status is 200 once the first record is read. Each line of the reply has an `error_code`: 200 and the
        location, or what is wrong with that record and a `message`. With 503 it may be stored or not. Types are BINARY
        (base64), JSON, STRING, and with a `schema` AVRO, JSONSCHEMA and PROTOBUF; without a type, data has the schema
        of `schema_id`, of `schema_version`, or the latest of its subject. After what is not JSON the stream ends.
        """
        allowed = collector.allow(request, "produce")
        given, _topics, topic, _records = path_parts(request, b"/v3/clusters/", 4)
        check_topics(allowed, [topic])
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Problem(415, "unsupported-encoding", "Send the records without a Content-Encoding.")
        await cluster.check(given)
        await collector.topics.partitions(topic)
        return _Streamed(_replies(collector, schemas, request, given, topic), media_type="application/json")

    return routes


class _Streamed(StreamingResponse):
    """A response that is written while the request is still read.

    Starlette's own would read the request too, to learn that the client is gone.
    """

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await self.stream_response(send)


async def _replies(
    collector: Collector, schemas: EmbeddedSchemas, request: Request, cluster: str, topic: str
) -> AsyncIterator[bytes]:
    """The lines of the reply, as records arrive. What can no longer be answered by a status is the last line."""
    objects = JsonObjects()
    count = 0
    begun = collector.budget.charge()  # what came of a record that is not complete
    try:
        async for chunk in _chunks(collector, request):
            allowed = collector.allow(request, "produce", needs_room=False)  # the key may be gone by now
            check_topics(allowed, [topic])
            encoder = V3Encoder(collector, schemas, request, allowed)
            with collector.budget.charge() as charge:
                charge.add(len(chunk))
                found = objects.feed(chunk)
                charge.add(len(found) * BYTES_PER_RECORD)
                if objects.held > MAX_JSON_BYTES_PER_BYTE * collector.limits.event:
                    check_record_size("The record", objects.held, collector.limits)
                count += len(found)
                lines = await _store(collector, encoder, cluster, topic, found, charge)
                begun.end()
                begun = collector.budget.charge()
                begun.add(objects.held)
            yield b"".join(orjson.dumps(line) + b"\r\n" for line in lines)
            if objects.is_broken:
                yield _last(400, "Between two records there may be spaces and line ends, and nothing else.")
                return
    except ClientDisconnect:
        return
    except Problem as problem:
        yield _last(problem.status, problem.detail)
        return
    except Exception as error:  # the status is gone: the client still learns that something failed
        log.exception("produce_failed", topic=topic, error=str(error))
        yield _last(500, "The collector failed; records without a line may be stored or not.")
        return
    finally:
        begun.end()
    if objects.held:
        yield _last(400, "The last record is not complete.")
    elif not count:
        yield _last(400, "There is no record in the body.")


def _last(status: int, detail: str) -> bytes:
    return orjson.dumps(error_line(status, detail)) + b"\r\n"


async def _chunks(collector: Collector, request: Request) -> AsyncIterator[bytes]:
    """The body as it arrives. A client may take its time between records, but not for ever."""
    stream = request.stream()
    timeout_s = collector.limits.body_timeout_s
    while True:
        try:
            chunk = await asyncio.wait_for(anext(stream, b""), timeout_s)
        except TimeoutError:
            raise Problem(
                408,
                "body-timeout",
                f"Nothing came for {timeout_s:g} s (collector_body_timeout_s). Begin another request.",
            ) from None
        if not chunk:
            return
        yield chunk


async def _store(
    collector: Collector, encoder: V3Encoder, cluster: str, topic: str, objects: list[bytes], charge: Charge
) -> list[dict[str, Any]]:
    """Send what can be sent, and say of each what became of it, in order."""
    lines: list[dict[str, Any]] = []
    accepted: list[V3Record] = []
    indexes: list[int] = []
    for index, text in enumerate(objects):
        try:
            given = await _read(collector, encoder, topic, text, charge)
        except (Problem, RegistryError) as error:
            lines.append(_refused(error))
            continue
        accepted.append(given)
        indexes.append(index)
        lines.append({})
    if accepted:
        collector.disk.check()  # a stream may be longer than there is room
        outcomes = await collector.producer.send([each.record for each in accepted])
        collector.metrics.count(topic, outcomes)
        for index, sent, outcome in zip(indexes, accepted, outcomes, strict=True):
            lines[index] = stored_line(cluster, sent, outcome)
    return lines


async def _read(collector: Collector, encoder: V3Encoder, topic: str, text: bytes, charge: Charge) -> V3Record:
    given = read_v3_record(parse_within(text, collector.limits.of_body, charge), topic)
    if given.partition != ANY_PARTITION:
        await collector.topics.check_partition(topic, given.partition)
    key, value = await encoder.encode(given.key, "key"), await encoder.encode(given.value, "value")
    found = v3_record(given, key, value)
    check_record_size("The record", found.record.size, collector.limits)
    return found


def _refused(error: Problem | RegistryError) -> dict[str, Any]:
    """The line about a record that is not stored; others of the request are. 400 says that it is wrong."""
    if isinstance(error, RegistryError):
        code = REGISTRY_REFUSED if error.status in (404, 409) else INVALID_SCHEMA
        return error_line(code, f"{error} The record was not stored.")
    code = INVALID_SCHEMA if error.kind == "invalid-schema" else error.status
    return error_line(400 if code == 422 else code, _reason(error))


def _reason(problem: Problem) -> str:
    """What is wrong with one record; others of the request are stored."""
    if (reason := problem.more.get("reason")) is None:
        return problem.detail
    where = problem.more.get("where")
    return f"{where}: {reason}. The record was not stored." if where else f"{reason}. The record was not stored."


def _described(cluster: str) -> dict[str, Any]:
    return {"kind": "KafkaCluster", "metadata": {}, "cluster_id": cluster}


DATA = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": [*TYPES, *SCHEMA_TYPES]},
        "data": {"description": "BINARY: base64."},
        "schema": {"type": "string"},
        "schema_id": {"type": "integer", "minimum": 1},
        "schema_version": {"type": "integer", "minimum": 1},
        "subject": {"type": "string"},
        "subject_name_strategy": {"type": "string", "enum": [*STRATEGIES]},
    },
}
BODY = {
    "parameters": [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in ("cluster_id", "topic")
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "key": DATA,
                        "value": DATA,
                        "partition_id": {"type": "integer", "minimum": 0},
                        "timestamp": {"type": "string"},
                        "headers": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "properties": {"name": {"type": "string"}, "value": {"description": "base64"}},
                            },
                        },
                    },
                }
            }
        },
    },
}
