"""Kafka transactions by REST: begin, produce, send offsets, commit, abort."""

from __future__ import annotations

import re
from typing import Any

from confluent_kafka import TopicPartition
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from infra.rest.problems import Problem
from infra.rest.responses import json_response, wrong_parameter
from master_dataset.collector.bodies import beside_loop, invalid_body, read_body
from master_dataset.collector.context import Collector
from master_dataset.collector.kafka_rest.consume import check_names
from master_dataset.collector.kafka_rest.consumers import Consumers
from master_dataset.collector.kafka_rest.produce import BODY, check_records, check_topics, read_records, request_key
from master_dataset.collector.kafka_rest.requests import check_locations, parameters_and_body, requested_locations
from master_dataset.collector.kafka_rest.transactional_producer import State
from master_dataset.collector.kafka_rest.transactions import Transactions
from master_dataset.collector.outcomes import location
from master_dataset.collector.parameters import path_parts, query, whole_number
from master_dataset.collector.producer import Refusal

NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
GROUP_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["group"],
                    "properties": {
                        "group": {"type": "string"},
                        "instance": {"type": "string"},
                        "offsets": {"type": "array", "items": {"type": "object"}},
                    },
                }
            }
        },
    },
}


def transaction_routes(collector: Collector, transactions: Transactions, consumers: Consumers) -> APIRouter:
    """`/transactions`."""
    routes = APIRouter(prefix="/transactions", tags=["transactions"])

    @routes.post("", status_code=201)
    async def begin(request: Request) -> Response:
        """Begin a transaction, which is aborted after `timeout` milliseconds unless it was committed.

        With a `name`, an open transaction of this key and name is aborted first: a client that crashed and begins again
        leaves nothing behind. 429: too many are open.
        """
        allowed = collector.allow(request, "produce")
        parameters, body = await parameters_and_body(collector, request)
        given = {**parameters, **(body if isinstance(body, dict) else {})}
        name, max_ms = given.get("name"), int(transactions.max_s * 1000)
        if name is not None and not (isinstance(name, str) and NAME.fullmatch(name)):
            raise wrong_parameter("name", "1 to 100 letters, digits, '.', '_' or '-'", str(name))
        timeout_ms = whole_number("timeout (milliseconds)", given.get("timeout", max_ms), 1, max_ms)
        begun = await transactions.begin(allowed.owner, name, timeout_ms / 1000)
        return json_response({"transaction": begun.id, "timeout": timeout_ms}, 201)

    @routes.get("/{transaction}")
    async def show(request: Request, transaction: str) -> Response:
        """What became of a transaction: open, failed, committing, committed, aborted, timed out or replaced."""
        allowed = collector.allow(request, "produce", needs_room=False)
        state = transactions.state_of(allowed.owner, transaction)
        return json_response({"transaction": transaction, "state": state})

    @routes.post("/{transaction}/produce", openapi_extra=BODY)
    @routes.post("/{transaction}/produce/{topic}", openapi_extra=BODY)
    async def produce(request: Request) -> Response:
        """Store messages in the transaction, as /produce does. Nobody who reads committed records sees them yet.

        409: the transaction has ended, or a message was refused and it can only be aborted.
        """
        allowed = collector.allow(request, "produce")
        transaction_id, _produce, *rest = path_parts(request, b"/transactions/", 3, at_least=2)
        transaction, topic = transactions.get(allowed.owner, transaction_id), rest[0] if rest else None
        if topic is not None:
            check_topics(allowed, [topic])
        with collector.budget.charge() as charge:
            body = await read_body(request, collector.limits.of_body, charge, collector.parsing)
            records = await beside_loop(
                collector.parsing,
                body,
                read_records,
                body,
                topic,
                request_key(query(request)),
                collector.limits,
                charge,
            )
            check_topics(allowed, {record.topic for record in records})
            await check_records(collector, records)
            outcomes = await transactions.send(transaction, records)
        collector.metrics.count([record.topic for record in records], outcomes)
        results = [location(record.topic, outcome) for record, outcome in zip(records, outcomes, strict=True)]
        if refused := [outcome for outcome in outcomes if isinstance(outcome, Refusal)]:
            raise Problem(
                409,
                "transaction-failed",
                f"Kafka did not take {len(refused)} of {len(outcomes)} records: {refused[0].text}. Abort the "
                "transaction and begin another one.",
                results=results,
            )
        return json_response(results)

    @routes.post("/{transaction}/offsets", openapi_extra=GROUP_BODY)
    async def send_offsets(request: Request, transaction: str) -> Response:
        """Commit offsets of a consumer group together with the transaction.

        `{"group": ..., "instance": ...}`: those after everything that the instance of /consume gave; with `offsets`,
        `[{topic, partition, offset}]`, these. With an instance: 409 `partitions-lost` once the group has given its
        partitions to another member; the transaction can only be aborted then. Needs the scope consume, too.
        """
        allowed = collector.allow(request, "produce", needs_room=False)
        collector.allow(request, "consume")
        found = transactions.get(allowed.owner, transaction)
        _, body = await parameters_and_body(collector, request)
        group, name, locations = _offsets(body)
        if locations is not None:
            await check_locations(collector, allowed, locations)
        if name is None:
            if locations is None:
                raise invalid_body("offsets", "without an instance, offsets are needed", status=400)
            await transactions.send_offsets(found, locations, lambda: consumers.group_metadata(group))
            return json_response([])
        instance = consumers.known(group, name)
        allowed.check_topics(consumers.topics_of(group, name))
        try:
            metadata, sending = await consumers.use(instance, instance.offsets_to_send, locations)
        except Problem as problem:
            if problem.kind == "partitions-lost":  # what it stored was made of records that others read again
                await transactions.fail(found)
            raise
        if sending:
            sent = [((each.topic, each.partition), each.offset) for each in sending]
            await transactions.send_offsets(found, sending, lambda: metadata, lambda: instance.settle(sent))
        return json_response(
            [{"topic": each.topic, "partition": each.partition, "offset": each.offset} for each in sending]
        )

    @routes.post("/{transaction}/commit")
    async def commit(request: Request, transaction: str) -> Response:
        """Commit: from now on everybody sees its records, all of them. Committing it again says the same.

        409: it was not committed, and what it stored is not read. 503: not known yet; send this request again.
        """
        owner = collector.allow(request, "produce", needs_room=False).owner
        if transactions.state_of(owner, transaction) is State.COMMITTED:
            return json_response({"transaction": transaction, "state": State.COMMITTED})
        state = await transactions.commit(transactions.get(owner, transaction))
        if state is not State.COMMITTED:
            raise Problem(409, "transaction-ended", f"The transaction {transaction!r} is {state}.", state=state)
        return json_response({"transaction": transaction, "state": state})

    @routes.post("/{transaction}/abort")
    async def abort(request: Request, transaction: str) -> Response:
        """Abort: nobody who reads committed records ever sees what it stored.

        409: it was committed, or its commit began. 503: send this request again.
        """
        owner = collector.allow(request, "produce", needs_room=False).owner
        state = transactions.state_of(owner, transaction)
        if state in (State.ABORTED, State.TIMED_OUT, State.REPLACED):
            return json_response({"transaction": transaction, "state": state})
        state = await transactions.abort(transactions.get(owner, transaction))
        if state is State.COMMITTED:
            raise Problem(409, "transaction-ended", f"The transaction {transaction!r} is committed.", state=state)
        return json_response({"transaction": transaction, "state": state})

    return routes


def _offsets(body: Any) -> tuple[str, str | None, list[TopicPartition] | None]:
    if not isinstance(body, dict) or not isinstance(body.get("group"), str):
        raise invalid_body("group", 'an object like {"group": "reports", "instance": "1"} is expected', status=400)
    name = body.get("instance")
    if name is not None and not isinstance(name, str):
        raise invalid_body("instance", "the name of a consumer instance is a string", status=400)
    check_names(body["group"], "none" if name is None else name)
    if body.get("offsets") is None:
        return body["group"], name, None
    return body["group"], name, requested_locations({}, body, with_offset=True, list_name="offsets")
