"""The demo: events by REST into Kafka, by Spark into the master dataset, shown from there, proved, and taken down."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import pyarrow as pa
import typer
from rich.table import Table

from infra import terminal, up
from infra.home import Home
from infra.local_stack import addresses
from infra.settings import Settings, load_settings
from master_dataset import coverage
from master_dataset.dead_letters import newest_first, watermarks
from master_dataset.errors import MasterDatasetError
from master_dataset.facts import Wanted, read_facts
from master_dataset.fsck import quick_check
from master_dataset.sending import Record, send_records
from master_dataset.table import table_path
from master_dataset.topics import librdkafka_config
from views.catalog.web import web

BATCH = 500
PATIENCE_S = 120
MARK = "made-by-the-demo"
"""A file in the demo's home: only such a home is removed."""
PAGES = ("/", "/pricing", "/docs", "/blog/one-number", "/sign-up")
POISON = (b'{"event_id": "torn', b'{"properties": {"ms": "fast"}}', b"\xff\xfe\x00")


def command(
    events: Annotated[int, typer.Option(min=1, envvar="TIDEMARK_CLI_EVENTS", help="How many events to send.")] = 10_000,
) -> None:
    """Bring everything up, send events by REST, show them from the master dataset, prove them, take it down."""
    settings = demo_settings(load_settings())
    home = Home(settings.home)
    home.check()
    if (home.root / MARK).is_file() and not home.is_locked():
        shutil.rmtree(home.root)  # left by a demo that was interrupted
    if home.exists:
        raise MasterDatasetError(f"{str(home.root)!r} is in use, or was not made by the demo. Move it away first.")
    with terminal.jar_progress() as progress:
        up.check_and_fetch(settings, progress)
    secret = up.first_access_key(settings) or ""
    (home.root / MARK).touch()
    with terminal.live_status() as show:
        up.start_detached(settings, show)
    try:
        _show_the_way(settings, secret, events)
    finally:
        with terminal.live_status() as show:
            up.stop(settings, show)
        shutil.rmtree(home.root)


def demo_settings(users: Settings) -> Settings:
    """Defaults on a home of its own, beside the user's: of theirs only what says how this machine runs Java.

    Above all the demo never touches a Kafka, a Redis or a master dataset that the user's settings name.
    """
    kept = ("java_home", "jars_dir", "ports_file", "ivy_settings", "kafka_heap_mb", "spark_driver_memory")
    return Settings.model_construct(
        **{name: getattr(users, name) for name in kept}, home=users.home.with_name(f"{users.home.name}-demo")
    )


def _show_the_way(settings: Settings, secret: str, count: int) -> None:
    where = addresses(settings)
    with _timed(f"POST {where.collector}/events/web: {count:,} events in batches of {BATCH}, all acknowledged"):
        _post(where.collector, secret, count)
    kafka = librdkafka_config(settings, where.kafka)
    with _timed(f"{len(POISON)} records that are no events, by a Kafka client that does not ask"):
        send_records(kafka, web.topic, [Record(None, value) for value in POISON])
    table = table_path(settings, web.name)
    with _timed("Spark archived them, Kafka -> Delta, and set the invalid ones aside"):
        _wait_for("records in the master dataset", lambda: coverage.of(table).rows, count + len(POISON))
        _wait_for("dead letters", lambda: watermarks(kafka, web)[1], len(POISON))
    facts = pa.Table.from_batches(read_facts(table, Wanted()))
    _print_pages(facts)
    letters = list(islice(newest_first(kafka, web), len(POISON)))
    for letter in reversed(letters):
        terminal.out.print(f"dead letter {letter.number}: {letter.reason}", highlight=False, markup=False)
    _prove(table, facts, count, len(letters))


def _post(address: str, secret: str, count: int) -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    login = base64.b64encode(f"admin:{secret}".encode()).decode()
    for numbers in _batches(range(count)):
        body = json.dumps([_event(number) for number in numbers])
        connection.request("POST", f"/events/{web.name}", body, {"Authorization": f"Basic {login}"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise MasterDatasetError(f"The collector answered {answer.status}: {text[:500].decode(errors='replace')}")
    connection.close()


def _event(number: int) -> dict[str, Any]:
    return {
        "event_id": f"demo-{number}",
        "event_time": f"2026-01-01T{number % 24:02}:{number % 60:02}:00Z",
        "user_id": f"user-{number * 7919 % 997}",
        "name": "page_view",
        "properties": {"url": PAGES[number * number % 13 % len(PAGES)], "ms": 20 + number % 400},
    }


def _wait_for(what: str, count: Callable[[], int], wanted: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (found := count()) < wanted:
        if time.monotonic() > deadline:
            raise MasterDatasetError(f"There are {found} of {wanted} {what} after {PATIENCE_S} s.")
        time.sleep(0.2)


def _print_pages(facts: pa.Table) -> None:
    event = facts["event"].combine_chunks()
    properties = event.field("properties")
    flat = pa.table({"page": properties.field("url"), "user": event.field("user_id"), "ms": properties.field("ms")})
    sums = flat.group_by("page").aggregate([("user", "count"), ("user", "count_distinct"), ("ms", "mean")])
    picture = Table("page", "hits", "visitors", "average ms", title="page views, read from the master dataset")
    for row in sums.sort_by([("user_count", "descending")]).to_pylist():
        numbers = (f"{row['user_count']:,}", f"{row['user_count_distinct']:,}", f"{row['ms_mean']:.1f}")
        picture.add_row(row["page"], *numbers)
    terminal.out.print(picture)


def _prove(table: Path, facts: pa.Table, acknowledged: int, dead: int) -> None:
    distinct = len(set(zip(facts["partition"].to_pylist(), facts["offset"].to_pylist(), strict=True)))
    damage = [finding for finding in quick_check(table) if finding.is_damage]
    proved = coverage.of(table).rows
    terminal.out.print(
        f"{acknowledged:,} acknowledged, {facts.num_rows:,} in the master dataset, {distinct:,} distinct offsets, "
        f"{dead} dead letters; the chain of commits proves {proved:,} rows: {'damaged' if damage else 'whole'}",
        highlight=False,
    )
    if damage or not acknowledged == facts.num_rows == distinct or dead != len(POISON):
        raise MasterDatasetError("The master dataset does not hold exactly what was acknowledged.")


def _batches(numbers: range) -> Iterator[range]:
    return (numbers[start : start + BATCH] for start in range(0, len(numbers), BATCH))


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    terminal.err.print(f"{what} ({time.monotonic() - began:.1f} s)", highlight=False, markup=False)
