"""A source after a rebase, without Kafka: its table, its acknowledgements, and which speed views are used."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.speed_floor import NO_RUN, first_run, floor_file, raise_floor
from infra.clients.kafka_admin import KafkaAdmin
from infra.settings import load_settings
from master_dataset.collector import offset_bases
from master_dataset.collector.offset_bases import OffsetBases
from master_dataset.collector.producer import Ack, Refusal
from master_dataset.cut import OffsetRange
from master_dataset.kafka.offset_base import OffsetBase
from master_dataset.table import coverage
from master_dataset.table.checks.fsck import Trouble
from master_dataset.table.history import read_history
from master_dataset.table.paths import table_path
from master_dataset.table.proofs import Kind, Proof
from master_dataset.table.sealing import seal
from tests.hand_made_table import Table, append
from views.source import Source

WEB = Source("web", fields="event_id string, event_time timestamp")
REBASE = Proof(Kind.REBASE, "t", "new", {0: 5}, {0: 8}, base={0: 8})
AFTER = Proof(Kind.APPEND, "t", "new", {0: 8}, {0: 10}, rows=2, base={0: 8})


def rebased(path: Path) -> Table:
    table = Table(path)
    table.commit(1, append(0, 5), ["a"])
    table.commit(2, REBASE)
    table.commit(3, AFTER, ["b"])
    return table


def test_a_table_knows_its_base_and_what_was_lost(tmp_path: Path) -> None:
    table = rebased(tmp_path / "web")
    held = coverage.of(table.path)
    assert held.offset_base == OffsetBase("new", {0: 8}, {0: 8})
    assert (held.cut, held.rows, held.lost, held.origin) == ({0: 10}, 7, [OffsetRange(0, 5, 8)], "id")
    assert table.troubles() == [Trouble.LOST]


def test_a_base_outlives_the_commit_that_recorded_it(tmp_path: Path) -> None:
    """The ledger has it too; where both are gone, the appends after it."""
    table = rebased(tmp_path / "web")
    table.log_file(2).write_bytes(b"")
    assert table.void() == [2]
    assert coverage.of(table.path).offset_base == OffsetBase("new", {0: 8}, {0: 8})
    assert table.to_restore() == [2], "the loss is recorded again"


def test_a_summary_of_sealed_commits_has_the_base(tmp_path: Path) -> None:
    table = rebased(tmp_path / "web")
    table.commit(4, Proof(Kind.APPEND, "t", "new", {0: 10}, {0: 11}, rows=1, base={0: 8}), ["c"])
    table.checkpoint(3)
    table.checkpoint(4)
    assert seal(table.path, min_commits=1) == 4
    history = read_history(table.path)
    assert history.summary is not None
    assert [commit.version for commit in history.commits] == [4]
    assert coverage.of_history(history).offset_base == OffsetBase("new", {0: 8}, {0: 8})
    assert coverage.of_history(history).unrecorded == []


def test_acknowledgements_of_events_name_logical_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(home=tmp_path)
    bases = OffsetBases(settings, KafkaAdmin(settings, "127.0.0.1:1"), [WEB])
    outcomes = [Ack(0, 2, 7), Ack(1, 2, 7), Ack(0, None, 7), Refusal(KafkaError._TIMED_OUT, "late")]
    bases.look()
    assert bases.logical("web", outcomes) is outcomes, "there is no table yet"
    rebased(table_path(settings, "web"))
    topic_id = "new"
    monkeypatch.setattr(offset_bases, "read_topic_id", lambda _admin, _topic: topic_id)
    bases.look()
    assert bases.logical("web", outcomes) == [Ack(0, 10, 7), *outcomes[1:]]
    topic_id = "made again"
    bases.look()
    unknown = [Ack(0, None, 7), Ack(1, None, 7), *outcomes[2:]]
    assert bases.logical("web", outcomes) == unknown, "before a rebase nobody can tell"
    assert bases.logical("other", outcomes) is outcomes


def test_a_floor_is_above_every_run_that_has_a_number(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path / "web")
    folder.root.mkdir()
    assert first_run(folder) == 0
    begun = publish_log.next_run(folder)
    floor = raise_floor(folder)
    assert begun < first_run(folder) == floor
    assert publish_log.next_run(folder) > floor
    assert raise_floor(folder) > floor
    floor_file(folder).write_text("{}")
    assert first_run(folder) == NO_RUN, "no speed view is used while it is damaged"
    assert raise_floor(folder) == first_run(folder)
