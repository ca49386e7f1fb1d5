"""What the scheduler does about a speed layer that is behind, on a real Redis: one run at a time, and none in a row."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis

from batch_layer.backlog import SETTLING_S, Action
from batch_layer.backlog_watch import BUSY_S, COUNT_S, BacklogWatch, NewestRun
from batch_layer.progress import quiet
from batch_layer.run_hand_off import HandOff
from batch_layer.schedule import IS_BUSY
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.generations import Opening, clean_up, publish
from hand_off.lag import KafkaEnd
from hand_off.manifests import Manifest, write_manifest
from hand_off.publish_log import Entry
from hand_off.speed_views import (
    STATE_BYTES,
    VIEW_HASH,
    Group,
    MicroBatch,
    Outcome,
    SpeedReader,
    SpeedViews,
    SpeedWriter,
)
from infra import failpoints
from infra.settings import Settings, load_settings
from master_dataset.cut import Cut
from tests.system.redis_server import redis_server
from torture.faults.failpoints import IN_OVERTAKES

CATALOG = {"v": "a" * 64}
END: Cut = {0: 100, 1: 50}


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with redis_server(tmp_path_factory.mktemp("redis")) as client:
        yield client


class Source:
    """A source whose writer lives, and is at `applied` while Kafka ends at END."""

    def __init__(self, redis: Redis, folder: Path) -> None:
        redis.flushdb()
        port = redis.connection_pool.connection_kwargs["port"]
        self.settings: Settings = load_settings(
            home=folder / "home", redis_url=f"redis://127.0.0.1:{port}/0", overtake_behind_events=100,
            overtake_behind_s=0,
        )  # fmt: skip
        self.folder = BatchFolder(folder / "web")
        publish_log.begin(self.folder, CATALOG, 0.0)
        self.views = SpeedViews(redis, "web")
        self.writer: SpeedWriter = self.views.start_writer()[0]
        self.writer.init(0, {}, CATALOG.values())
        self.now = 0.0
        self.watch = BacklogWatch(self.settings, clock=lambda: self.now)
        self.report({})

    def report(self, applied: Cut) -> None:
        self.writer.heartbeat(60, KafkaEnd(END, 0, applied, None))

    def append(self, run: int, cut: Cut) -> Entry:
        write_manifest(self.folder, Manifest(run, "web", cut, None, 0.0, 1.0, 1, 0, 0, (), ()))
        return publish_log.append(self.folder, Entry(run, cut, CATALOG, 1.0))

    def hold(self, states: int, bytes_each: int = 2 * STATE_BYTES) -> None:
        """The speed views have so many states now, which take so much memory each."""
        snapshot = self.views.reader.snapshot()
        assert snapshot.meta is not None
        applied, gid = snapshot.meta.applied, snapshot.generations[-1].gid
        grown = states * bytes_each - self.views.reader.state_bytes()
        written = {Group(CATALOG["v"][:VIEW_HASH], 0, str(number).encode()): b"state" for number in range(states)}
        batch = MicroBatch(applied, {**applied, 0: applied.get(0, 0) + 1}, gid, written, grown=grown)
        assert self.writer.apply(batch) == Outcome.OK

    def seen(self, *, is_busy: bool = False, is_pinned: bool = False) -> list[tuple[str, Action]]:
        """What is to be done once Kafka's end has been calm for long enough."""
        newest = NewestRun(0, None, None, is_pinned=is_pinned)
        found: list[tuple[str, Action]] = []
        for _ in range(int(SETTLING_S) + 2):
            found = list(self.watch.look(["web"], lambda _source: newest, is_busy=is_busy))
            self.now += 1
        return found


@pytest.fixture
def source(redis: Redis, tmp_path: Path) -> Source:
    return Source(redis, tmp_path)


def test_a_writer_that_is_behind_is_overtaken_by_one_run(source: Source) -> None:
    assert source.seen() == [("web", Action.OVERTAKE)]
    assert source.views.reader.is_overtaken(), "the writer waits from the decision on"
    source.watch.begin("web", Action.OVERTAKE)
    assert source.seen() == [], "one at a time"
    assert source.watch.status("web")["action"] == "overtake"
    publish(source.views, source.folder, Opening("overtake", {}), source.append(1, END))
    source.views.runs.withdraw()
    source.seen()
    assert not source.views.reader.is_overtaken(), "it has been overtaken: it waits no longer"
    source.watch.end("web", 0, 1)
    assert source.seen() == []
    assert source.watch.status("web") == {"action": "none", "behind": 0, "catch_up_s": 0.0, "reason": ""}


def no_kafka() -> Cut:
    raise OSError("no route to the broker")


@pytest.mark.parametrize(
    ("kafka_end", "is_pinned", "mode"),
    [
        (no_kafka, False, "alone"),
        (lambda: {0: 0}, False, "open"),
        (lambda: END, True, "open"),
        (lambda: END, False, "overtake"),
    ],
)
def test_a_writer_waits_only_for_a_run_that_overtakes_it(
    source: Source, kafka_end: Callable[[], Cut], is_pinned: bool, mode: str
) -> None:
    source.append(1, {})
    publish(source.views, source.folder, Opening("overtake", {}), publish_log.last(source.folder))
    if is_pinned:
        publish_log.serve(source.folder, 1)
    source.seen()
    source.watch.begin("web", Action.OVERTAKE)
    assert source.views.reader.is_overtaken(), "before the run itself has begun"
    hand_off = HandOff(source.folder, source.views, wait_s=1)
    assert hand_off.open(2, CATALOG.values(), quiet, kafka_end).mode == mode
    source.seen()
    assert source.views.reader.is_overtaken() == (mode == "overtake")
    hand_off.end_announcement()
    source.seen()
    assert not source.views.reader.is_overtaken(), "the scheduler does not announce it again"
    source.watch.end("web", 1, 1)
    source.now += 300
    source.watch.begin("web", Action.OVERTAKE)
    assert source.views.reader.is_overtaken(), "the next run is announced, whatever this one was"


@pytest.mark.parametrize(("code", "pause_s"), [(1, 300.0), (IS_BUSY, BUSY_S)])
def test_after_a_run_that_failed_or_found_another_there_is_a_pause(source: Source, code: int, pause_s: float) -> None:
    source.seen()
    source.watch.begin("web", Action.OVERTAKE)
    source.watch.end("web", code, 0)
    source.views.runs.withdraw()
    assert source.seen() == []
    assert not source.views.reader.is_overtaken(), "the writer goes on meanwhile"
    source.now += pause_s
    assert source.seen() == [("web", Action.OVERTAKE)]


def test_after_a_run_that_the_writer_has_passed_the_next_is_an_ordinary_one(source: Source) -> None:
    source.seen()
    source.watch.begin("web", Action.OVERTAKE)
    source.append(1, {0: 10})
    source.watch.end("web", 0, 1)  # it was refused: Redis still shows the run before
    assert source.seen() == [("web", Action.RUN)]
    source.watch.begin("web", Action.RUN)
    source.watch.end("web", 0, 1)
    assert source.seen() == [("web", Action.OVERTAKE)]


def test_no_writer_waits_for_a_run_that_cannot_begin_yet(source: Source) -> None:
    source.seen(is_busy=True)
    assert not source.views.reader.is_overtaken(), "a scheduled run is at work, perhaps for an hour"
    source.seen()
    assert source.views.reader.is_overtaken()


def test_what_an_import_has_yet_to_send_counts_as_backlog(source: Source) -> None:
    few = source.settings.model_copy(update={"overtake_behind_events": 1_000})
    source.watch = BacklogWatch(few, clock=lambda: source.now)
    assert source.seen() == []
    source.views.runs.announce_load("import:1", 5_000, 60)
    assert source.seen() == [("web", Action.OVERTAKE)]


def test_speed_views_of_many_states_are_freed_by_an_ordinary_run(source: Source) -> None:
    few = source.settings.model_copy(update={"overtake_states": 20, "overtake_behind_events": 0})
    source.watch = BacklogWatch(few, clock=lambda: source.now)
    source.hold(20)
    assert source.seen() == []
    source.hold(21)
    assert source.seen() == [], "states are counted once a minute"
    source.now += COUNT_S
    assert source.seen(is_pinned=True) == [], "a run frees nothing while readers are rolled back"
    assert source.seen() == [("web", Action.RUN)]
    assert source.watch.status("web")["reason"] == "21 states"
    assert not source.views.reader.is_overtaken(), "the writer goes on meanwhile"


def test_states_are_counted_only_where_they_take_the_memory_of_more_than_the_limit(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[SpeedReader] = []

    def size(reader: SpeedReader) -> tuple[int, int]:
        counts.append(reader)
        return 0, 0

    monkeypatch.setattr(SpeedReader, "size", size)
    source.watch.settings = source.settings.model_copy(update={"overtake_states": 20})
    for states, expected in ((20, 0), (21, 1)):
        source.hold(states, STATE_BYTES)
        source.seen()
        assert len(counts) == expected
    source.watch.settings = source.settings.model_copy(update={"overtake_states": 0})
    source.now += COUNT_S
    source.seen()
    assert len(counts) == 1, "0 is no limit"


def test_a_run_that_overtakes_ends_after_the_import_that_is_at_work(source: Source) -> None:
    stages: list[str] = []
    source.views.runs.announce_load("import:1", 5_000, 60)

    def report(stage: str, _done: int, _total: int) -> None:
        stages.append(stage)
        if len(stages) == 2:
            source.views.runs.withdraw_load("import:1")

    def kafka_end() -> Cut:
        assert source.views.reader.events_to_come() is None, "else the run would hold a part of the import"
        return END

    hand_off = HandOff(source.folder, source.views, wait_s=5)
    opening = hand_off.open(1, CATALOG.values(), report, kafka_end)
    hand_off.end_announcement()
    assert opening == Opening("overtake", END)
    assert stages == ["waiting for the import to end"] * 2


def test_a_run_overtakes_also_where_kafka_has_no_time_to_say_where_it_ends(source: Source) -> None:
    hand_off = HandOff(source.folder, source.views, wait_s=5)
    opening = hand_off.open(1, CATALOG.values(), lambda *_: None, lambda: {})
    hand_off.end_announcement()
    assert opening == Opening("overtake", END), "where the writer has seen it end"


@pytest.mark.parametrize("lost", ["writer", "redis"])
def test_nothing_is_started_where_nobody_writes_or_redis_is_away(source: Source, lost: str) -> None:
    if lost == "writer":
        source.views.client.delete(source.views.layout.alive)
    else:
        source.watch.settings = source.settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"})
    assert source.seen() == []


def test_the_jump_of_a_run_that_was_killed_is_completed_unless_readers_were_rolled_back(source: Source) -> None:
    source.append(1, {0: 5})
    source.append(2, END)
    clean_up(source.views, source.folder, grace_s=60)
    meta = source.views.reader.snapshot().meta
    assert meta is not None
    assert (meta.published, meta.applied) == (2, END)
    publish_log.serve(source.folder, 1)
    source.append(3, {0: 101, 1: 50})
    clean_up(source.views, source.folder, grace_s=60)
    meta = source.views.reader.snapshot().meta
    assert meta is not None
    assert meta.published == 2, "else the readers of run 1 would lose what the speed views have for them"


KILLED_THERE = """
import sys
from pathlib import Path
from redis import Redis
from hand_off.batch_folder import BatchFolder
from hand_off.generations import clean_up
from hand_off.speed_views import SpeedViews
port, folder = sys.argv[1:]
clean_up(SpeedViews(Redis(port=int(port)), "web"), BatchFolder(Path(folder)), grace_s=60)
"""


def test_whoever_is_killed_before_it_completes_a_jump_leaves_it_to_the_next(source: Source, tmp_path: Path) -> None:
    source.append(1, END)
    (tmp_path / "armed").mkdir()
    for name in IN_OVERTAKES:
        (tmp_path / "armed" / name).touch()
        port = str(source.views.client.connection_pool.connection_kwargs["port"])
        died = subprocess.run(
            [sys.executable, "-c", KILLED_THERE, port, str(source.folder.root)],
            env={**os.environ, failpoints.VARIABLE: str(tmp_path / "armed")}, check=False, timeout=60,
        )  # fmt: skip
        assert died.returncode == -signal.SIGKILL, name
        before = source.views.reader.snapshot().meta
        assert before is not None
        assert (before.published, before.applied) == (0, {}), "readers and the writer stay where they are"
    clean_up(source.views, source.folder, grace_s=60)
    after = source.views.reader.snapshot().meta
    assert after is not None
    assert (after.published, after.applied, after.marked) == (1, END, {})
