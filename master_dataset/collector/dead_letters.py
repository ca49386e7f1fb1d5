"""Dead letters by REST: look at a source's invalid records, and send them again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from infra.rest.problems import Problem
from infra.rest.responses import json_response
from master_dataset.collector.context import Collector
from master_dataset.collector.kafka_rest.requests import DEFAULT_LIMIT, MAX_LIMIT, MAX_OFFSET
from master_dataset.collector.parameters import query, whole_number
from master_dataset.dead_letters.later_readings import AlreadyCounts, LaterReadings
from master_dataset.dead_letters.letters import (
    DeadLetter,
    ValueLeftOut,
    newest_first,
    read_letters,
    replay,
    watermarks,
)
from master_dataset.errors import MasterDatasetError
from master_dataset.table.paths import table_path
from views.source import Source


def dead_routes(collector: Collector) -> APIRouter:
    """`/dead/{source}`, `/dead/{source}/{number}` and `/dead/{source}/replay`."""
    routes = APIRouter(prefix="/dead", tags=["dead letters"])

    @routes.get("/{source}")
    async def newest(request: Request, source: str) -> Response:
        """The newest invalid records of a source, at most `limit` (500), fewer where they are large.

        429: too many requests read from Kafka already.
        """
        found = collector.allow(request, "consume").source(source)
        limit = whole_number("limit", query(request).get("limit", DEFAULT_LIMIT), 1, MAX_LIMIT)
        return json_response(await collector.fetching.run_now(_newest, collector, found, limit))

    @routes.get("/{source}/{number}")
    async def one(request: Request, source: str, number: str) -> Response:
        """One invalid record, by its number in the dead-letter topic."""
        found = collector.allow(request, "consume").source(source)
        wanted = whole_number("number", number, 0, MAX_OFFSET)
        return json_response(await collector.fetching.run_now(_one, collector, found, wanted))

    @routes.post("/{source}/replay")
    async def again(request: Request, source: str) -> Response:
        """Send the records `first` to `last` (or only `first`) to the source's topic again, as they were."""
        found, parameters = collector.allow(request, "produce").source(source), query(request)
        first = whole_number("first", parameters.get("first", ""), 0, MAX_OFFSET)
        last = whole_number("last", parameters.get("last", first), first, min(MAX_OFFSET, first + MAX_LIMIT - 1))
        sent = await collector.fetching.run_now(_replay, collector, found, first, last)
        return json_response({"topic": found.topic, "sent": sent})

    return routes


def _newest(collector: Collector, source: Source, limit: int) -> list[dict[str, Any]]:
    with _as_problem():
        readings = _later_readings(collector, source)
        found: list[dict[str, Any]] = []
        size = 0
        for letter in islice(newest_first(collector.kafka_config, source), limit):
            found.append(readings.described(letter))
            size += letter.size
            if size >= collector.limits.body:
                break
        return found


def _one(collector: Collector, source: Source, number: int) -> dict[str, Any]:
    letters = _between(collector, source, number, number)
    with _as_problem():
        return _later_readings(collector, source).described(letters[0])


def _later_readings(collector: Collector, source: Source) -> LaterReadings:
    return LaterReadings(table_path(collector.settings, source.name), source)


def _between(collector: Collector, source: Source, first: int, last: int) -> list[DeadLetter]:
    with _as_problem():
        start, end = watermarks(collector.kafka_config, source)
        if not start <= first <= last < end:
            there = f"there are {start} to {end - 1}" if end > start else "there are none"
            asked = str(first) if first == last else f"{first} to {last}"
            detail = f"Source {source.name!r} has no dead letter {asked}: {there}."
            raise Problem(404, "unknown-dead-letter", detail)
        letters = list(read_letters(collector.kafka_config, source, first, last + 1))
        if not letters:
            detail = (
                f"Source {source.name!r} has no dead letter {first}: a transaction ends there, or it was compacted."
            )
            raise Problem(404, "unknown-dead-letter", detail)
        return letters


def _replay(collector: Collector, source: Source, first: int, last: int) -> int:
    letters = _between(collector, source, first, last)
    with _as_problem():
        _later_readings(collector, source).check_replay(letters)
        return replay(collector.kafka_config, source, letters)


@contextmanager
def _as_problem() -> Iterator[None]:
    """Turn errors of dead letters into problems."""
    try:
        yield
    except ValueLeftOut as error:
        raise Problem(409, "value-left-out", str(error)) from None
    except AlreadyCounts as error:
        raise Problem(409, "already-counts", str(error)) from None
    except MasterDatasetError as error:
        raise Problem(503, "dead-letters-unavailable", str(error), retry_after_s=2) from None
