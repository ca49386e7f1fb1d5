"""What all doors share: the source that they fill, the key of a request, and the way of its events into Kafka."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from starlette.requests import Request

from infra.rest.bodies import BodyLimits
from infra.rest.problems import Problem
from master_dataset.collector.bodies import beside_loop, check_batch, parse_within, read_body
from master_dataset.collector.context import Collector
from master_dataset.collector.doors.fields import check_suitable
from master_dataset.collector.events import given_key, prepare_events, send_prepared
from master_dataset.collector.limits import Budget, Charge, Limits
from master_dataset.collector.parameters import query
from master_dataset.collector.reserved import check_writable
from master_dataset.errors import InvalidEvent
from master_dataset.events.envelope import PreparedEvent
from views.formats.fit import fit_of
from views.source import Source

MAX_UNPROVED = 32_000_000
"""Bytes of all bodies together that wait for their key to be read: it is inside them."""
MAX_UNPROVED_BODY = 6 << 20
"""Bytes of one of them. PostHog's libraries send batches of up to 5 MiB, Segment's of up to half a megabyte."""
MAX_UNPROVED_S = 10
"""How long one of them may take, so that strangers cannot hold that room with bodies that do not end."""

Event = dict[str, Any] | InvalidEvent
Prepared = list[PreparedEvent | InvalidEvent]
Read = Callable[[Source], Iterable[Event]]
"""Makes events of what was sent, or says of each one why it is none. It may take long, and runs in a thread."""
SMALL_BODY = 1 << 15
"""Larger bodies are read in a thread: to map a message takes longer than to parse it."""
MAX_GROWTH = 4
"""How much larger than the largest body the events of a request may be: what they have in common is stored in each."""


class Target(NamedTuple):
    """The source that a request stores events in, and the Kafka key that it names for all of them."""

    source: Source
    key: bytes | None


@dataclass(frozen=True)
class Door:
    """One protocol. `fields` are those that it fills, besides id and time."""

    collector: Collector
    protocol: str
    fields: tuple[str, ...]
    unproved: Budget = field(
        default_factory=lambda: Budget(MAX_UNPROVED, "of requests without an Authorization header", "")
    )

    def open(self, request: Request, name: str, authorization: str | None = None) -> Target:
        """The source, if the request's key may write to it and it can take what comes by the reading in force."""
        declared = self.collector.allow(request, "produce", authorization=authorization).source(name)
        check_writable(self.collector.declarations, declared.topic)
        check_suitable(self.collector.validators.source(declared.name), self.protocol, self.fields)
        return Target(declared, given_key(declared, query(request)))

    async def store(self, target: Target, body: bytes, charge: Charge, read: Read) -> list[dict[str, Any]]:
        """Store the events that `read` makes of a body: a result for each. Events that are not valid have an error."""
        if len(body) < SMALL_BODY:
            prepared = self._prepare(target, charge, read)
        else:
            prepared = await self.collector.parsing.run(self._prepare, target, charge, read)
        return await send_prepared(self.collector, target.source, prepared)

    async def store_all(self, target: Target, body: bytes, charge: Charge, read: Read) -> list[dict[str, Any]]:
        """The same for protocols that have no reply for a part: the problem 422 names each event that is not stored."""
        results = await self.store(target, body, charge, read)
        errors = [result["error"] for result in results if "error" in result]
        if errors:
            raise Problem(
                422,
                "invalid-event",
                f"{len(errors)} of {len(results)} events are not valid. The others are stored. The first: "
                f"{errors[0]['detail']}",
                where=errors[0]["where"],
                results=results,
            )
        return results

    async def receive_json(
        self, request: Request, name: str, charge: Charge, key_of: Callable[[Any], str | None]
    ) -> tuple[Target, bytes, Any]:
        """The target, the body and its JSON, for protocols whose clients may send their key inside the body.

        A request with an Authorization header is checked before its body is read. Bodies of the others are small, have
        little room together until their key is known, and are parsed beside the event loop.
        """
        header = authorization_of(request)
        limits, threads = self.collector.limits.of_body, self.collector.parsing
        if header is not None or not self.collector.access.is_required:
            target = self.open(request, name, header)
            body = await read_body(request, limits, charge, threads)
            return target, body, await beside_loop(threads, body, parse_within, body, limits, charge)
        with ExitStack() as stack:
            unproved = stack.enter_context(self.unproved.charge())
            limits = of_unproved(limits)
            body = await read_body(request, limits, unproved, threads)
            value = await threads.run(parse_within, body, limits, unproved) if body else None
            key = key_of(value)
            target = self.open(request, name, f"Bearer {key}" if key else "")
            charge.add(unproved.held)
        return target, body, value

    def _prepare(self, target: Target, charge: Charge, read: Read) -> Prepared:
        """Each event as Kafka gets it, all by one reading. One at a time: a small body can become many events."""
        in_force = self.collector.validators.in_force(target.source.name)
        limits, fit = self.collector.limits, fit_of(in_force.source)
        prepared: Prepared = []
        size, held = 0, charge.held
        for event in read(in_force.source):
            if len(prepared) == limits.batch:
                check_batch(limits.batch + 1, limits, charge)
            fitted = event if isinstance(event, InvalidEvent) else fit(event)
            (one,) = prepare_events(self.collector, in_force, [fitted], [None], target.key)
            prepared.append(one)
            size += len(one.value) if isinstance(one, PreparedEvent) else 0
            check_growth(size, limits)
        check_batch(len(prepared), limits, charge)
        charge.give_back(charge.held - held)  # for what `read` has parsed, whose values are gone
        charge.add(size)
        return prepared


def of_unproved(limits: BodyLimits) -> BodyLimits:
    """The limits of a body whose sender is not known before it is read."""
    return replace(
        limits,
        size=min(limits.size, MAX_UNPROVED_BODY),
        timeout_s=min(limits.timeout_s, MAX_UNPROVED_S),
        setting="where its key is inside it",
        so=f"{limits.so} A request with the key in its Authorization header may have {limits.size} bytes.",
    )


def check_growth(size: int, limits: Limits) -> None:
    """Raise the problem 413 if the events of one request are larger together than they may be."""
    if size > MAX_GROWTH * limits.body:
        raise Problem(
            413,
            "events-too-large",
            f"The events of a request may have {MAX_GROWTH * limits.body} bytes as they are stored (four times "
            "collector_max_body_mb); these have more, with what they have in common in each. Nothing was "
            "stored. Send them in several requests.",
        )


def authorization_of(request: Request) -> str | None:
    """The Authorization header, None where there is none.

    A user name without a password is a secret: clients send their write key so.
    """
    header: str | None = request.headers.get("authorization")
    if header is None or header[:6].lower() != "basic ":
        return header
    try:
        name, _, secret = base64.b64decode(header[6:].strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return header
    return f"Bearer {name}" if name and not secret else header


def placed(source: Source, event_id: object, time: str | None, fields: dict[str, Any]) -> dict[str, Any]:
    """An event with id and time where the source has them; of the door's own fields those that are not null."""
    event = {name: value for name, value in fields.items() if value is not None}
    event[source.id_field] = event_id
    event[source.time_field] = time
    return event
