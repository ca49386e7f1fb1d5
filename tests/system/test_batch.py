"""Batch views on the whole stack: events by REST, a run by hand, kill -9 of a run, runs that the scheduler makes.

Last comes history, by `tidemark import` and by REST: a run of the scheduler overtakes the speed layer.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable

from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.manifests import read_manifest
from hand_off.speed_views import Meta, SpeedViews
from infra.clients.redis import redis_client
from infra.home import Home, read_json, write_json
from infra.process_status import read_status, status_path
from infra.settings import child_environment
from master_dataset.cut import Cut, count_between, is_below
from tests.conftest import Stack, assert_same, start_stack, stop_stack, wait_until
from views import in_memory
from views.declarations import declared_by
from views.in_memory import Event

TIDEMARK = str(Path(sys.executable).with_name("tidemark"))
pytestmark = pytest.mark.in_order
BEHIND = 500
"""So many events behind are a backlog."""
HISTORY, OFTEN = 3_000, 17
"""Events of a history, and each how manyth of them comes twice."""
HELD_S = 120.0
SENT: list[dict[str, Any]] = []
"""By the tests of this module, in their order: the stack is theirs together."""


DECLARED = """
from tidemark import Count, Source, Sum, View

web = Source("web", fields="event_id string, event_time timestamp, url string, ms double")
page_hits = View("page_hits", source=web, keys={"url": "url"}, answers={"hits": Count(), "ms": Sum("ms")})
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Everything but the scheduler, which the tests start themselves; a run is due each night."""
    folder = tmp_path_factory.mktemp("batch")
    views_dir = folder / "views"
    views_dir.mkdir()
    (views_dir / "web.py").write_text(DECLARED)
    running = start_stack(
        folder / "home", views_dir=views_dir, with_examples=False, archiver_enabled=True, speed_enabled=True,
        archive_interval_s=1, start_timeout_s=180, overtake_behind_events=BEHIND, overtake_behind_s=0,
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


# ---- history -------------------------------------------------------------------


def test_an_import_of_history_ends_in_the_answers_by_a_run_that_overtakes(whole: Stack, tmp_path: Path) -> None:
    history = history_of("i", "2025-11")
    path = tmp_path / "history.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, history[0])
        writer.writeheader()
        writer.writerows(history)
    with scheduler(whole), held(whole) as skipped:
        (done,) = tidemark(whole, "import", "--source", "web", str(path))
        SENT.extend(history)
        assert (done["state"], done["sent"], done["refused"]) == ("done", len(history), 0)
        assert (done["in_answers"], done["not_in_answers"]) == (True, ""), done
        assert skipped() >= BEHIND, "the speed layer jumped over them"
    assert answers(whole) == len(SENT)


def test_history_by_rest_is_overtaken_though_nobody_types_a_command(whole: Stack) -> None:
    history = [*history_of("r", "2025-12"), *history_of("i", "2025-11")[::OFTEN]]  # some of the import's again
    with held(whole) as skipped:
        for begin in range(0, len(history), BEHIND):
            ends = post(whole, history[begin : begin + BEHIND])
        with scheduler(whole):
            assert wait_until("a run to overtake the speed layer", skipped, 240) == len(history)
    assert is_below(ends, meta_of(whole).applied)
    assert answers(whole) == len(SENT)
    again = [*history_of("r", "2025-12")[:BEHIND:3], *history_of("i", "2025-11")[:BEHIND:3]]
    ends = post(whole, again)  # the speed layer has counted none of these, and knows them all
    wait_until("the speed layer to apply them", lambda: is_below(ends, meta_of(whole).applied))
    assert answers(whole) == len(SENT)


def history_of(name: str, month: str) -> list[dict[str, Any]]:
    """Page views of all hours of four weeks, some of them twice."""
    events = [
        event_of(f"{name}{number}", number, f"{month}-{1 + number % 28:02}T{number % 24:02}")
        for number in range(HISTORY)
    ]
    return [*events, *events[::OFTEN]]


@contextmanager
def held(stack: Stack) -> Iterator[Callable[[], int]]:
    """The speed layer waits for a run to overtake it, as if the scheduler had found the backlog at its first event:
    what is sent in the block is a backlog, however fast the machine is. The run itself is the scheduler's.

    Gives what tells how many events the speed layer has jumped over; 0: it has not jumped.
    """
    before = meta_of(stack)
    with redis_client(stack.settings, stack.redis) as client:
        views = SpeedViews(client, "web")
        assert views.runs.forecast(HELD_S)

        def skipped() -> int:
            meta, generations = views.reader.snapshot()[1:]
            has_jumped = meta is not None and meta.made != before.made
            return count_between(before.applied, generations[0].start) if has_jumped else 0

        yield skipped


@contextmanager
def scheduler(stack: Stack) -> Iterator[None]:
    """A scheduler to which nothing is due, while the block runs. What it is waited for at the end: its run."""
    began = time.time()
    write_json(stack.settings.home / "schedule.json", {"handled": began, "last": None, "seen": {}})

    def status() -> dict[str, Any]:
        found = read_status(status_path(stack.settings, "scheduler"))
        return found.to_json() if found is not None and found.at >= began else {}

    with started(stack, python=("-m", "batch_layer.scheduler"), TIDEMARK_BATCH_SCHEDULE="0 0 1 1 *") as process:
        try:
            wait_until("the scheduler", status)
            yield
            wait_until("its run to end", lambda: not status()["running"], 120)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def answers(stack: Stack) -> int:
    """Every answer is that of the reference interpreter. Returns how many events that were."""
    (view,) = declared_by(stack.settings).views_of("web")
    found = tidemark(stack, "query", "page_hits", *ALL)
    assert found["next"] is None
    rows = {
        (_micros(row["bucket"]), (row["url"],)): {name: row[name] for name in view.answers} for row in found["rows"]
    }
    events = [
        Event(0, offset, each["event_id"], datetime.fromisoformat(each["event_time"]), each)
        for offset, each in enumerate(SENT)
    ]
    assert_same(rows, in_memory.answers(view, events))
    return len(events)


ALL = ("--from", "2025-11-01", "--to", "2026-04-01", "--grain", "hour", "--by", "url", "--limit", "10000")


def _micros(bucket: str) -> int:
    return int(datetime.fromisoformat(bucket).timestamp()) * 1_000_000


def send(stack: Stack, numbers: range) -> Counter[str]:
    """Page views. Returns the hits of each url, when the master dataset has them."""
    ends = post(stack, [event_of(f"e{number}", number, "2026-03-01T10") for number in numbers])
    for name, cut in (("master dataset", _cut), ("speed views", lambda stack: meta_of(stack).applied)):
        wait_until(f"the {name} to have them", lambda: is_below(ends, cut(stack)), 300)  # noqa: B023
    return Counter(f"/{number % 5}" for number in numbers)


def event_of(event_id: str, number: int, hour: str) -> dict[str, Any]:
    """A page view. Events of one id are alike."""
    return {
        "event_id": event_id,
        "event_time": f"{hour}:{number % 60:02}:00Z",
        "url": f"/{number % 5}",
        "ms": number / 10,
    }


def post(stack: Stack, events: Sequence[dict[str, Any]]) -> Cut:
    """Send them by REST. Returns the cut that holds them."""
    with stack.client() as client:
        answers = client.post("/events/web", json=events).raise_for_status().json()
    SENT.extend(events)
    ends: Cut = {}
    for each in answers:
        ends[each["partition"]] = max(ends.get(each["partition"], 0), each["offset"] + 1)
    return ends


def _cut(stack: Stack) -> dict[int, int]:
    from master_dataset.table import coverage
    from master_dataset.table.paths import table_path

    return coverage.of(table_path(stack.settings, "web")).cut


def meta_of(stack: Stack) -> Meta:
    with redis_client(stack.settings, stack.redis) as client:
        found: Meta = wait_until("the speed views", lambda: SpeedViews(client, "web").reader.snapshot().meta)
    return found


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


def started(stack: Stack, *arguments: str, python: tuple[str, ...] = (), **more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", *python] if python else [TIDEMARK, *arguments]
    return subprocess.Popen(
        command, env=child_environment(stack.settings) | more, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
