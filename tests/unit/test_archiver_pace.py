"""How long the archiver waits between two commits."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from batch_layer import master_snapshot
from batch_layer.master_snapshot import MasterSnapshot
from batch_layer.progress import quiet
from batch_layer.upstream import Refusal, refusal
from hand_off.errors import BatchError
from hand_off.generations import Opening
from infra.process_status import ProcessStatus
from infra.processes import Worker, run_worker
from infra.settings import load_settings
from master_dataset.archiver.commit_request import ask_for_commit, request_file
from master_dataset.archiver.pace import Pace
from master_dataset.archiver.source_archiver import NothingArchived, SourceArchiver
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.errors import KafkaUnreachable, TopicError
from master_dataset.kafka.positions import TopicReplaced
from master_dataset.table.append import TableBusy
from master_dataset.table.paths import own_folder
from tests.conftest import wait_until
from tests.hand_made_table import Table, append
from views.source import Source

FIELDS = "event_id string, event_time timestamp"


class Clock(threading.Event):
    """Time that passes only while somebody waits for it; `meanwhile` happens at some of its seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.meanwhile: dict[float, Any] = {}

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += max(timeout, 0.001)
        for at in [at for at in self.meanwhile if at <= self.now]:
            self.meanwhile.pop(at)()
        return self.is_set()


class Waiting:
    """A pace with a clock of its own, and so many records as `pending` says."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.pending = 0
        self.clock = Clock()
        self.asked = 0
        self.table = folder / "web"
        own_folder(self.table).mkdir()
        self.pace = Pace(
            load_settings(home=folder / "home", **settings), self.table, self.count, self.clock, lambda: self.clock.now
        )

    def count(self) -> int:
        self.asked += 1
        return self.pending

    def waited(self) -> float:
        began = self.clock.now
        self.pace.wait(began)
        return round(self.clock.now - began)


@pytest.fixture
def waiting(tmp_path: Path) -> Waiting:
    return Waiting(tmp_path)


def test_while_little_arrives_there_is_a_commit_a_minute(waiting: Waiting) -> None:
    waiting.pending = 3
    assert [waiting.waited(), waiting.waited()] == [60, 60]
    assert waiting.asked < 30, "Kafka is asked every few seconds"


@pytest.mark.parametrize(("pending", "seconds"), [(999, 60), (1_000, 5), (499_999, 5), (500_000, 0)])
def test_what_is_worth_a_commit_is_committed_soon_and_a_backlog_without_a_pause(
    waiting: Waiting, pending: int, seconds: int
) -> None:
    waiting.pending = pending
    assert waiting.waited() == seconds


def test_the_pause_ends_when_enough_has_come(waiting: Waiting) -> None:
    waiting.clock.meanwhile = {117.0: lambda: setattr(waiting, "pending", 1_000)}
    assert waiting.waited() == 20


def test_a_request_ends_the_pause_once(waiting: Waiting) -> None:
    waiting.pending = 1
    waiting.clock.meanwhile = {103.0: lambda: ask_for_commit(waiting.table)}
    assert waiting.waited() == 3
    assert waiting.waited() == 60


def test_a_request_during_a_commit_is_served_by_the_next_one(waiting: Waiting) -> None:
    waiting.waited()
    ask_for_commit(waiting.table)  # the commit that is being made was planned before
    assert waiting.waited() == 0
    assert waiting.waited() == 60


def test_every_request_counts(waiting: Waiting) -> None:
    for _ in range(3):
        ask_for_commit(waiting.table)
        assert waiting.waited() == 0


def test_the_pause_ends_when_the_archiver_stops(waiting: Waiting) -> None:
    waiting.clock.meanwhile = {102.0: waiting.clock.set}
    assert waiting.waited() == 2


def test_a_longest_pause_below_the_shortest_is_the_shortest(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path, archive_interval_s=7, archive_max_interval_s=1)
    assert waiting.waited() == 7
    assert waiting.pace.trigger_s == 1


def test_kafka_that_does_not_answer_changes_nothing(waiting: Waiting) -> None:
    def refuse() -> int:
        raise MasterDatasetError("no broker answers")

    waiting.pace.pending = refuse
    assert waiting.waited() == 60


def test_whoever_may_not_write_beside_the_table_asks_in_vain(tmp_path: Path) -> None:
    ask_for_commit(tmp_path / "none" / "web")
    assert not request_file(tmp_path / "none" / "web").exists()


def test_a_run_that_waits_for_the_master_dataset_asks_for_the_commit(tmp_path: Path) -> None:
    table = Table(tmp_path / "web")
    table.commit(1, append(0, 5), ["a"])

    def archive() -> None:
        """The archiver, as far as the run sees it: it commits when it is asked, and not before."""
        wait_until("a request", request_file(table.path).exists)
        table.commit(2, append(5, 9), ["b"])

    archiver = threading.Thread(target=archive)
    archiver.start()
    snapshot = MasterSnapshot("web", table.path)
    snapshot.check()
    assert snapshot.wait_for(Opening("open", {0: 9}), 60, quiet) == {0: 9}
    archiver.join()


@pytest.mark.parametrize(
    ("reason", "is_temporary"),
    [
        (KafkaUnreachable("no answer"), True),
        (RuntimeError("Query archive-web ended by itself."), True),
        (TableBusy("a repair writes it"), True),
        (TopicError("the leader moves", is_temporary=True), True),
        (TopicError("not authorized"), False),
        (TopicReplaced("made again"), False),
        (NothingArchived({"web": KafkaUnreachable("no answer"), "shop": TopicReplaced("made again")}), True),
        (NothingArchived({"web": TopicReplaced("made again"), "shop": TopicReplaced("made again")}), False),
    ],
)
@pytest.mark.parametrize("is_process", [False, True], ids=["source", "process"])
def test_a_waiting_run_outlives_a_refusal_that_the_archiver_will_retry_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: Exception, is_temporary: bool, is_process: bool
) -> None:
    """Whether the archiver refuses one source or ended altogether: its status says if somebody has to act."""
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(master_snapshot, "LOOK_S", 0.01)
    settings = load_settings()
    table = Table(tmp_path / "web")
    table.commit(1, append(0, 5), ["a"])

    def archive(worker: Worker) -> None:
        if is_process:
            raise reason
        archiver = SourceArchiver(settings, "127.0.0.1:1", None, Source("web", fields=FIELDS), refusal=reason)  # type: ignore[arg-type]
        worker.write_status(ProcessStatus(time.time(), sources={"web": archiver.describe()}))

    run_worker("archiver", archive)

    def commit(*_: object) -> None:
        """The run reports that it waits; then the archiver's next attempt succeeds."""
        if not table.log_file(2).exists():
            table.commit(2, append(5, 9), ["b"])

    snapshot = MasterSnapshot("web", table.path, lambda: refusal(settings, "web"))
    snapshot.check()
    if is_temporary:
        assert snapshot.wait_for(Opening("open", {0: 9}), 60, commit) == {0: 9}
    else:
        with pytest.raises(BatchError, match="does not archive it, "):
            snapshot.wait_for(Opening("open", {0: 9}), 60, commit)


def test_a_run_that_waited_in_vain_repeats_what_the_archiver_says(tmp_path: Path) -> None:
    table = Table(tmp_path / "web")
    table.commit(1, append(0, 5), ["a"])
    snapshot = MasterSnapshot("web", table.path, lambda: Refusal("Kafka does not answer.", is_temporary=True))
    snapshot.check()
    with pytest.raises(BatchError, match=r"did not reach the cut .* reason now: Kafka does not answer\."):
        snapshot.wait_for(Opening("open", {0: 9}), 0, quiet)
