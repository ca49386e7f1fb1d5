"""A source outlives its Kafka: after a rebase, answers are those of all records that were not lost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from hand_off import publish_log
from infra.clients.kafka_admin import KafkaAdmin
from master_dataset.cut import Cut, count_between, join
from master_dataset.kafka.positions import TopicReplaced
from master_dataset.kafka.record import timestamp_ms
from master_dataset.kafka.topics import apply_topics, delete_topic, existing_topics, plan_topics
from master_dataset.reading.read import RecordFilter, read_records
from master_dataset.table import coverage
from master_dataset.table.checks.fsck import Trouble, deep_check
from master_dataset.table.paths import table_path
from master_dataset.table.rebase import LossNotAccepted, NothingToRebase
from serving_layer.readers.limits import ExecutionLimits
from serving_layer.readers.speed import SpeedViewReader
from tests.conftest import wait_until
from tidemark import rebase as rebase_steps

if TYPE_CHECKING:
    from tests.system.speed_source import SpeedPlace


class Killed(BaseException):
    """Where a process would be killed."""


def rebase(speed: SpeedPlace, *, accept_loss: bool = True) -> dict[str, Any]:
    return rebase_steps.rebase_source(speed.settings, speed.source, lambda: speed.spark, accept_loss=accept_loss)


def make_topic_again(speed: SpeedPlace) -> None:
    admin, topic = KafkaAdmin(speed.settings, speed.kafka), speed.source.topic
    delete_topic(admin, topic)
    wait_until("the topic to be gone", lambda: topic not in existing_topics(admin))
    wait_until("the topic to be made again", lambda: apply_topics(admin, plan_topics([speed.source])))


def held(speed: SpeedPlace) -> coverage.Coverage:
    return coverage.of(table_path(speed.settings, speed.name))


def renumber(speed: SpeedPlace, since: int, base: Cut) -> None:
    """Events that were sent before their base was known."""
    speed.events[since:] = [replace(each, offset=each.offset + base[each.partition]) for each in speed.events[since:]]


def speed_answer(speed: SpeedPlace) -> str | None:
    """Why answers go without the speed views."""
    entry = publish_log.served(speed.folder)
    return SpeedViewReader(speed.redis.client, speed.folder, ExecutionLimits()).read(entry.run, entry.cut, ()).reason


def killed_at(speed: SpeedPlace, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def reach(name: str) -> None:
        if name == point:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(rebase_steps, "reach", reach)
        with pytest.raises(Killed):
            rebase(speed)


def test_answers_stay_exact_across_topics_that_were_made_again(
    speed: SpeedPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    speed.send(40)
    with speed.keeping():
        speed.caught_up()
        speed.archive_and_run()
        archived = held(speed).cut
        speed.send(20)  # applied by the speed layer, never archived
        speed.caught_up()
    applied = speed.kafka_end()
    before = {key: value for key, value in speed.redis.saved().items() if not key.endswith(b":alive")}
    # A new Kafka, with duplicates of old events among the new ones.
    make_topic_again(speed)
    known = len(speed.events)
    speed.send(20, poison=2)
    with pytest.raises(TopicReplaced, match="tidemark master rebase"):
        speed.archive()
    with pytest.raises(LossNotAccepted, match="--accept-loss") as refused:
        rebase(speed, accept_loss=False)
    assert sum(each.size for each in refused.value.lost) == count_between(archived, applied)
    killed_at(speed, "rebase.before_floor", monkeypatch)
    assert speed_answer(speed) is None, "nothing was changed yet"
    killed_at(speed, "rebase.after_floor", monkeypatch)
    assert "rebased" in (speed_answer(speed) or "")
    killed_at(speed, "rebase.after_commit", monkeypatch)
    assert rebase(speed)["base"] == {str(p): offset for p, offset in held(speed).base.items()}, "its last step"
    with pytest.raises(NothingToRebase):
        rebase(speed)
    base = held(speed).base
    assert held(speed).base_begin == join(archived, applied)
    renumber(speed, known, base)
    lost = [e for e in speed.events[:known] if archived.get(e.partition, 0) <= e.offset < applied[e.partition]]
    speed.events = [event for event in speed.events if event not in lost]
    # Redis comes back as it was: what it holds of lost records is in no answer, and the next run drops it.
    speed.redis.set_back(before)
    assert "rebased" in (speed_answer(speed) or "")
    with speed.keeping() as writer:
        wait_until("the writer to wait for a run", lambda: "no batch run was published" in writer.error)
        assert "Redis holds no" not in (speed_answer(speed) or "")
        manifest = speed.archive_and_run()
        assert all(view.kind == "continued" for view in manifest.views), "old records were not computed again"
        speed.caught_up()
    # Another one, with the newest records as they were: they are not new.
    first = [row for row in _rows(speed) if row["offset"] >= held(speed).base_begin[row["partition"]]]
    make_topic_again(speed)
    _send_again(speed, [row for row in first if row["offset"] < held(speed).base_begin[row["partition"]] + 3])
    known = len(speed.events)
    speed.send(20)
    rebase(speed)
    again = held(speed).base
    assert all(again[p] >= base[p] for p in base)
    renumber(speed, known, again)
    manifest = speed.archive_and_run()
    assert manifest.cut == speed.kafka_end()
    with speed.keeping():
        speed.caught_up()
    findings = deep_check(speed.spark, table_path(speed.settings, speed.name))
    assert {finding.trouble for finding in findings} == {Trouble.LOST}


def _rows(speed: SpeedPlace) -> list[dict[str, Any]]:
    batches = read_records(table_path(speed.settings, speed.name), RecordFilter(with_invalid=True))
    return sorted((row for batch in batches for row in batch.to_pylist()), key=lambda r: (r["partition"], r["offset"]))


def _send_again(speed: SpeedPlace, rows: list[dict[str, Any]]) -> None:
    producer = Producer({**speed.config, "acks": "all", "enable.idempotence": True})
    for row in rows:
        producer.produce(
            speed.source.topic, row["value"], row["key"], row["partition"], timestamp=timestamp_ms(row["timestamp"])
        )
    assert producer.flush(30) == 0
