"""Where the processor time of an event goes on its way to Kafka, each step beside the way it is done without.

    python benchmarks/profile_events.py [--rounds 10]

No broker is needed: librdkafka queues what it is given. Times are processor time of this process, the least of all
rounds, so that a busy machine changes them little.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import random
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import report
from bench_collector import BATCH, event
from confluent_kafka import Producer
from fastapi import FastAPI

from infra.rest.access_keys import add_key
from infra.settings import load_settings
from master_dataset.collector.app import create_app
from master_dataset.collector.direct_events import DirectEvents
from master_dataset.events.envelope import compile_validator, parse_json, prepare_event
from master_dataset.importer.csv_file import CsvReader
from views.catalog.web import web
from views.declarations import Declarations
from views.source import Source
from views.strict_json import parse_list_with_texts

REQUESTS = 200
RECORDS = 60_000
FLIGHTS = (
    "event_time timestamp, year int, month int, day int, dep_time int, sched_dep_time int, dep_delay double, "
    "arr_time int, sched_arr_time int, arr_delay double, carrier string, flight int, tailnum string, origin string, "
    "dest string, air_time double, distance double, hour int, minute int"
)
flights = Source("flights", fields=f"event_id string, {FLIGHTS}")


class Step(NamedTuple):
    """A step of one event: what it is compared with, and what is done."""

    name: str
    without: Callable[[], object] | None
    now: Callable[[], object]
    events: int


def main() -> None:
    """Measure every step, and write the result and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="profile-events-") as folder:
        steps = [*batch_steps(), csv_step(), request_step(Path(folder))]
        times = {step.name: measure(step, rounds) for step in steps}
    rows = [
        (name, f"{before:.2f} µs" if before else "", f"{now:.2f} µs", f"{now / before:.2f}" if before else "")
        for name, (before, now) in times.items()
    ]
    text = report.table(("processor time of an event", "without", "now", "of that"), *rows)
    figures = {name: {"without_us": before, "now_us": now} for name, (before, now) in times.items()}
    report.write("profile_events", "Where the time of an event goes before Kafka", {"steps": figures}, text)


def measure(step: Step, rounds: int) -> tuple[float | None, float]:
    """Microseconds of an event, without and now, in turns."""
    least = [float("inf"), float("inf")]
    for _ in range(rounds):
        for index, work in enumerate((step.without, step.now)):
            if work is not None:
                began = time.process_time()
                work()
                least[index] = min(least[index], (time.process_time() - began) * 1e6 / step.events)
    return (round(least[0], 2) if step.without else None), round(least[1], 2)


def batch_steps() -> list[Step]:
    """The collector's steps with a batch of 500."""
    body = orjson.dumps([event(number) for number in range(BATCH)])
    events, texts = parse_list_with_texts(body, BATCH)
    validate = compile_validator(web)
    records = [prepare_event(web, each) for each in events]
    # Its queue has room for all rounds, and there is no broker to send to.
    config = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({**config, "error_cb": lambda _error: None})

    def texts_twice() -> object:
        return [prepare_event(web, each) for each in parse_json(body)]

    def texts_once() -> object:
        values, known = parse_list_with_texts(body, BATCH)
        return [prepare_event(web, each, text=text) for each, text in zip(values, known, strict=True)]

    def acknowledge(_index: int, _error: object, _message: object) -> None:
        pass

    def one_by_one() -> None:
        for index, (key, value, _) in enumerate(records):
            producer.produce("t", value, key, on_delivery=partial(acknowledge, index))

    def together() -> None:
        messages = [
            {"key": key, "value": value, "callback": partial(acknowledge, index)}
            for index, (key, value, _) in enumerate(records)
        ]
        producer.produce_batch("t", messages)

    if not all(texts):
        raise SystemExit("the texts of this batch are not known; nothing would be measured")
    return [
        Step("batch of 500: parse, and write for Kafka (without: written twice)", texts_twice, texts_once, BATCH),
        Step("batch of 500: validate", None, lambda: [validate(each) for each in events], BATCH),
        Step("batch of 500: hand over to librdkafka (without: one by one)", one_by_one, together, BATCH),
    ]


def csv_step() -> Step:
    """A record of a CSV file with 19 columns, in the shape of a year of flights."""
    records, validate = flight_records(), compile_validator(flights)

    def new_reader() -> CsvReader:
        reader = CsvReader(flights, UTC)
        reader.is_event(",".join(field.split()[0] for field in FLIGHTS.split(", ")).encode())
        return reader

    def by_event() -> None:
        reader = new_reader()
        for raw in records:
            read = reader.read(raw)
            validate(read)
            read["event_id"] = "id"
            prepare_event(flights, read)

    def by_cell() -> None:
        reader = new_reader()  # no cell is remembered from the round before
        for raw in records:
            reader.encode(raw, "id")

    if new_reader().encode(records[0], "id") is None:
        raise SystemExit("this record is left to the reader; nothing would be measured")
    return Step("CSV record of 19 cells into an event (without: each cell converted)", by_event, by_cell, RECORDS)


def flight_records() -> list[bytes]:
    """Departures as an airport lists them: hours in their order, 4,000 planes."""
    chance, moment, found = random.Random(1), datetime(2013, 1, 1, 5, tzinfo=UTC), []  # noqa: S311  the same records each time
    for _ in range(RECORDS):
        moment += timedelta(seconds=chance.randrange(200))
        clock = [chance.randrange(2400) for _ in range(4)]
        late = [chance.randrange(-20, 300) for _ in range(2)]
        cells = (
            f"{moment:%Y-%m-%dT%H:00:00Z}", moment.year, moment.month, moment.day, clock[0], clock[1], late[0],
            clock[2], clock[3], late[1], chance.choice(("UA", "AA", "B6")), chance.randrange(9000),
            f"N{chance.randrange(4000)}A", chance.choice(("EWR", "JFK", "LGA")), chance.choice(("IAH", "MIA")),
            chance.randrange(20, 400), chance.randrange(80, 4000), moment.hour, moment.minute,
        )  # fmt: skip
        found.append(",".join(map(str, cells)).encode())
    return found


def request_step(home: Path) -> Step:
    """A request with one event, through all layers up to its validation, which refuses it: so no broker is needed."""
    secret = add_key(home, "profile", ["produce"])
    app = create_app(load_settings(home=home, kafka_bootstrap="127.0.0.1:1"), Declarations({"web": web}))
    body = orjson.dumps({**event(1), "event_id": 7})
    authorization = b"Basic " + base64.b64encode(f"profile:{secret}".encode())
    loop = asyncio.new_event_loop()

    async def send_all() -> None:
        for _ in range(REQUESTS):
            await send_one(app, body, authorization)

    def by_route() -> None:
        direct = DirectEvents.__call__
        DirectEvents.__call__ = lambda self, *rest: self._app(*rest)  # type: ignore[method-assign]
        try:
            loop.run_until_complete(send_all())
        finally:
            DirectEvents.__call__ = direct  # type: ignore[method-assign]

    def directly() -> None:
        loop.run_until_complete(send_all())

    return Step("request with one event, all but Kafka (without: by its route)", by_route, directly, REQUESTS)


async def send_one(app: FastAPI, body: bytes, authorization: bytes) -> None:
    """A request as uvicorn hands it over. It must be refused by the validation."""
    statuses: list[int] = []
    headers = [(b"host", b"bench"), (b"authorization", authorization), (b"content-length", b"%d" % len(body))]
    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/events/web", "raw_path": b"/events/web", "root_path": "", "query_string": b"", "headers": headers,
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        statuses.append(message.get("status", 0))

    await app(scope, receive, send)
    if statuses[0] != 422:
        raise SystemExit(f"unexpected status {statuses[0]}")


if __name__ == "__main__":
    main()
