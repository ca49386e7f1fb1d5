"""Batch views on the whole stack: events by REST, a run by hand, kill -9 of a run, a run made up by the scheduler."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable

from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.manifests import read_manifest
from infra.home import Home, read_json, write_json
from infra.settings import child_environment
from tests.conftest import Stack, start_stack, stop_stack, wait_until

TIDEMARK = str(Path(sys.executable).with_name("tidemark"))


DECLARED = """
from tidemark import Count, Source, Sum, View

web = Source("web", fields="event_id string, event_time timestamp, url string, ms double")
page_hits = View("page_hits", source=web, keys={"url": "url"}, answers={"hits": Count(), "ms": Sum("ms")})
"""


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Stack]:
    """Everything but the scheduler, which the test starts itself; a run is due each night."""
    views_dir = tmp_path / "views"
    views_dir.mkdir()
    (views_dir / "web.py").write_text(DECLARED)
    running = start_stack(
        tmp_path / "home", views_dir=views_dir, with_examples=False, archiver_enabled=True, speed_enabled=True,
        archive_interval_s=1, start_timeout_s=180,
    )  # fmt: skip
    yield running
    stop_stack(running)


def test_runs_publish_what_was_sent(whole: Stack) -> None:
    """By hand, through a kill -9 in the middle, and by the scheduler for a night that was missed."""
    folder = BatchFolder.of(whole.settings, "web")
    hits = send(whole, range(300))
    made = tidemark(whole, "batch", "run")
    assert [(each["run"], each["kind"]) for each in made] == [(1, "full")]
    assert served(folder) == (1, 300)
    assert hits_of_delta(folder) == hits

    hits += send(whole, range(250, 400))  # fifty of them again
    with started(whole, "batch", "run") as process:
        wait_until("the run's lease", lambda: (read_json(folder.lease) or {}).get("pid") == process.pid)
        wait_until("the run to get to work", lambda: psutil.Process(process.pid).children(recursive=True))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert served(folder) == (1, 300)

    # The scheduler was last up a year ago: the night that it missed is made up for at once.
    write_json(whole.settings.home / "schedule.json", {"handled": 1_700_000_000.0, "last": None, "seen": {}})
    with started(whole, python=("-m", "batch_layer.scheduler")) as process:
        wait_until("the scheduler's run", lambda: served(folder)[1] == 450, 240)
        wait_until("its end", lambda: (read_json(whole.settings.home / "schedule.json") or {}).get("last") or {}, 120)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    hits.subtract(Counter(f"/{number % 5}" for number in range(250, 300)))
    assert hits_of_delta(folder) == hits
    runs = tidemark(whole, "batch", "list")
    assert [each["run"] for each in runs if each["state"] == "served"] == [served(folder)[0]]
    assert tidemark(whole, "batch", "show", str(served(folder)[0]))["duplicates"] == 50
    assert "WARN" in Home(whole.settings.home).log_file("batch").read_text()


def send(stack: Stack, numbers: range) -> Counter[str]:
    """Page views. Returns the hits of each url, when the master dataset has them."""
    events = [
        {
            "event_id": f"e{number}",
            "event_time": f"2026-03-01T10:{number % 60:02}:00Z",
            "url": f"/{number % 5}",
            "ms": number / 10,
        }
        for number in numbers
    ]
    with stack.client() as client:
        answers = client.post("/events/web", json=events).raise_for_status().json()
    ends = {answer["partition"]: answer["offset"] + 1 for answer in answers}
    for name, cut in (("master dataset", _cut), ("speed views", _applied)):
        wait_until(f"the {name} to have them", lambda: all(cut(stack).get(p, 0) >= end for p, end in ends.items()), 300)  # noqa: B023
    return Counter(f"/{number % 5}" for number in numbers)


def _cut(stack: Stack) -> dict[int, int]:
    from master_dataset.table import coverage
    from master_dataset.table.paths import table_path

    return coverage.of(table_path(stack.settings, "web")).cut


def _applied(stack: Stack) -> dict[int, int]:
    from hand_off.speed_views import SpeedViews
    from infra.clients.redis import redis_client

    with redis_client(stack.settings, stack.redis) as client:
        meta = SpeedViews(client, "web").reader.snapshot().meta
    return dict(meta.applied) if meta is not None else {}


def served(folder: BatchFolder) -> tuple[int, int]:
    """The run that readers see, and how many records it is made of."""
    run = publish_log.served(folder).run
    return run, read_manifest(folder, run).events if run else 0


def hits_of_delta(folder: BatchFolder) -> Counter[str]:
    """What another engine reads."""
    manifest = read_manifest(folder, publish_log.last(folder).run)
    table = DeltaTable(str(folder.table("page_hits", manifest.view("page_hits").hash)))
    found: Counter[str] = Counter()
    for row in table.to_pyarrow_dataset().to_table(columns=["url", "hits"]).to_pylist():
        found[row["url"]] += row["hits"]
    return found


def tidemark(stack: Stack, *arguments: str) -> Any:
    done = subprocess.run(
        [TIDEMARK, *arguments, "--output", "json"],
        env=child_environment(stack.settings), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    of_jvm = [line for line in done.stderr.splitlines() if " WARN " in line or line.startswith("WARNING:")]
    assert not of_jvm, "what Spark and its JVM say belongs into a log"
    return json.loads(done.stdout)


def started(stack: Stack, *arguments: str, python: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", *python] if python else [TIDEMARK, *arguments]
    return subprocess.Popen(
        command, env=child_environment(stack.settings), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
