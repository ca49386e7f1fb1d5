"""Urls of 200 kB on the whole stack: they take what short ones take, in Redis, in answers and in a batch run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra.clients.redis import redis_client
from infra.settings import child_environment
from tests.conftest import Stack, start_stack, stop_stack, wait_until
from views.short_texts import MAX_BYTES, shorten

DECLARED = """
from tidemark import Count, Distinct, Source, Sum, View

FIELDS = "event_id string, event_time timestamp, url string, ms double"
long = Source("long", fields=FIELDS)
short = Source("short", fields=FIELDS)
long_pages = View("long_pages", long, keys={"url": "url"}, answers={"hits": Count(), "ms": Sum("ms")})
short_pages = View("short_pages", short, keys={"url": "url"}, answers={"hits": Count(), "ms": Sum("ms")})
long_days = View("long_days", long, grain="1d", answers={"urls": Distinct("url", exact=True)})
short_days = View("short_days", short, grain="1d", answers={"urls": Distinct("url", exact=True)})
"""
EVENTS = 200
URL_BYTES = 200_000
AT_ONCE = 50
"""In a request, so that its body is smaller than collector_max_body_mb."""
REDIS_MB = 64
"""Whole urls would not fit: each is a key of a state, and again of its orders by hits and by ms."""
DRIVER_MEMORY = "512m"
"""The heap of the batch run: half the default, and nearly the least with which Spark starts."""
ROW_BYTES = 1_000
"""A row of an answer with a short form, and whatever else it says."""
TIDEMARK = str(Path(sys.executable).with_name("tidemark"))
PYTHON_MB = 400
"""A Python process of ours with its libraries, before it has any data."""
JVM_MB = 600
"""What Java takes beside its heap: classes, compiled code, threads, buffers of Kafka and the network."""
STATES_MB, SOURCES = 128, 2
"""The states that the writer of a source keeps in memory: 32 MiB packed (`MAX_CACHED_BYTES`), and as objects."""
PROGRAM_MB = 50
"""Less than any of our processes takes: one that was not found would look as if it took nothing."""
DAY = {"from": "2026-03-01", "to": "2026-03-02", "grain": "all"}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("long")
    (folder / "views").mkdir()
    (folder / "views" / "declared.py").write_text(DECLARED)
    running = start_stack(
        folder / "home", views_dir=folder / "views", with_examples=False, archiver_enabled=True, speed_enabled=True,
        serving_enabled=True, redis_max_memory_mb=REDIS_MB, start_timeout_s=180,
    )  # fmt: skip
    yield running
    stop_stack(running)


def url(number: int) -> str:
    """Urls that differ at their ends only."""
    return f"https://shop.example/search?q={'x' * URL_BYTES}{number}"


def send(stack: Stack, source: str, urls: list[str]) -> None:
    with stack.client(timeout_s=120) as client:
        for first in range(0, len(urls), AT_ONCE):
            events = [
                {"event_id": f"e{n}", "event_time": f"2026-03-01T{n % 24:02}:00:00Z", "url": urls[n], "ms": n / 4}
                for n in range(first, min(first + AT_ONCE, len(urls)))
            ]
            client.post(f"/events/{source}", json=events).raise_for_status()


def run(stack: Stack, *arguments: str, **more: str) -> str:
    """What a command prints. It has to succeed."""
    environment = {**child_environment(stack.settings), **more}
    done = subprocess.run(
        [TIDEMARK, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done
    return done.stdout


def speed_status(stack: Stack) -> dict[str, Any]:
    return {row["source"]: row for row in json.loads(run(stack, "speed", "status", "--output", "json"))}


def wait_until_applied(stack: Stack) -> dict[str, Any]:
    """Until the speed layer says that it keeps up with all events. What it says is checked by what Redis holds."""
    found: dict[str, Any] = {}

    def is_applied() -> bool:
        found.update(speed_status(stack))
        rows = [found[name] for name in ("long", "short")]
        return all(row["state"] == "keeps up" and applied(row) == EVENTS for row in rows)

    try:
        wait_until("all events to be applied", is_applied, 180)
    except pytest.fail.Exception as error:
        raise AssertionError(f"{error}: {found}") from None
    return found


def applied(row: dict[str, Any]) -> int:
    return sum(row.get("applied", {}).values())


def state_bytes(stack: Stack, source: str) -> int:
    """How much memory Redis itself says that the states of a source take."""
    with redis_client(stack.settings, stack.redis) as client:
        keys = client.scan_iter(f"tidemark:{{{source}}}:v:*", count=1_000)
        return sum(int(client.memory_usage(key, samples=0) or 0) for key in keys)


def answer(stack: Stack, view: str, **parameters: str) -> tuple[dict[str, Any], int]:
    """A query's answer, and its bytes."""
    with stack.asking() as client:
        found = client.get(f"/views/{view}/query", params={**DAY, **parameters})
        assert found.status_code == 200, found.text[:2_000]
        return found.json(), len(found.content)


def assert_answers_are_short(stack: Stack) -> None:
    """Long urls are answered as their short forms would be, which were sent to the other source."""
    found, size = answer(stack, "long_pages", by="url", limit="1000")
    expected, _ = answer(stack, "short_pages", by="url", limit="1000")
    assert found["rows"] == expected["rows"]
    assert len(found["rows"]) == EVENTS
    assert {row["hits"] for row in found["rows"]} == {1}
    assert size < EVENTS * ROW_BYTES
    assert found["meta"]["shortened_keys"]
    assert found["meta"]["complete"], found["meta"]
    assert found["meta"]["speed"]["lag_events"] == 0
    for view in ("long_days", "short_days"):
        assert answer(stack, view)[0]["rows"][0]["urls"] == EVENTS
    (row,) = answer(stack, "long_pages", **{"url": shorten(url(7))})[0]["rows"]
    assert row["hits"] == 1, "a filter takes the short form that an answer shows"


def test_urls_of_200_kb_take_what_short_ones_take(stack: Stack) -> None:
    urls = [url(number) for number in range(EVENTS)]
    assert all(len(each.encode()) > URL_BYTES > MAX_BYTES for each in urls)
    send(stack, "long", urls)
    send(stack, "short", [shorten(each) for each in urls])

    status = wait_until_applied(stack)
    long, short = (state_bytes(stack, source) for source in ("long", "short"))
    assert long == pytest.approx(short, rel=0.1)
    assert long < EVENTS * URL_BYTES / 10
    assert status["long"]["state_bytes"] == pytest.approx(long, rel=0.5), "the status tells what Redis holds"
    assert status["long"]["state_bytes"] == pytest.approx(status["short"]["state_bytes"], rel=0.1)
    assert_answers_are_short(stack)

    run(stack, "batch", "run", "--source", "long", TIDEMARK_SPARK_DRIVER_MEMORY=DRIVER_MEMORY)
    run(stack, "batch", "run", "--source", "short", TIDEMARK_SPARK_DRIVER_MEMORY=DRIVER_MEMORY)
    status = wait_until_applied(stack)
    assert [status[source]["run"] for source in ("long", "short")] == [1, 1]
    assert_answers_are_short(stack)
    assert_memory_is_bounded(stack)


def assert_memory_is_bounded(stack: Stack) -> None:
    """No process ever took more than docs/operations.md says ("Memory of each process"), with one query at a time."""
    settings = stack.settings
    jvm = megabytes(settings.spark_driver_memory) + JVM_MB
    bounds = {
        "collector": PYTHON_MB + 2 * settings.collector_buffer_mb,
        "archiver": PYTHON_MB + jvm,
        "speed": PYTHON_MB + 3 * settings.speed_max_mb + SOURCES * STATES_MB + jvm,
        "serving": PYTHON_MB + settings.serving_max_state_mb + 2 * settings.serving_cache_mb,
    }
    peaks = {name: peak_mb(stack.service(name)["pid"]) for name in bounds}
    assert all(PROGRAM_MB < peaks[name] < bounds[name] for name in bounds), (peaks, bounds)


def peak_mb(pid: int) -> float:
    """What a service and its JVM took at most until now, as the kernel counts it."""
    return sum(map(_high_water_mb, [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]))


def _high_water_mb(pid: int) -> float:
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def megabytes(size: str) -> int:
    """Memory as Spark's settings name it, such as `1g`."""
    return int(size[:-1]) * {"m": 1, "g": 1024}[size[-1].lower()]
