"""What tests of the master dataset share: a source of its own on the shared broker, and ways to harm it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from confluent_kafka import Producer

from infra.clients.kafka import librdkafka_config
from infra.clients.kafka_admin import KafkaAdmin
from infra.settings import Settings
from master_dataset.archiver.archive import Archive, open_archive
from master_dataset.kafka.positions import read_positions
from master_dataset.kafka.topics import apply_topics, delete_records, delete_topic, existing_topics, plan_topics
from master_dataset.reading.read import RecordFilter, read_records
from master_dataset.table.checks.fsck import Trouble, quick_check
from master_dataset.table.checks.repair import Report, repair
from master_dataset.table.coverage import effective_proofs, follow
from master_dataset.table.delta_log import read_commits
from master_dataset.table.paths import table_path
from tests.conftest import Stack, wait_until
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIELDS = "event_id string, event_time timestamp, user_id string, n int"
POISON = [b"\xff\xfe", b"{", b'{"n":"three"}', b'{"n":1} {"n":2}', b""]


class Place:
    """A source of its own on the shared broker, with its table."""

    def __init__(self, stack: Stack, folder: Path, **declared: Any) -> None:
        self.settings: Settings = stack.settings.model_copy(update={"master_dir": folder, "home": folder / "home"})
        self.bootstrap = stack.kafka
        self.source = Source(f"s{uuid4().hex[:12]}", fields=FIELDS, **declared)
        self.config = librdkafka_config(self.settings, self.bootstrap)
        self.admin = KafkaAdmin(self.settings, self.bootstrap)
        self.table = table_path(self.settings, self.source.name)
        self.sent: dict[tuple[int, int], tuple[bytes | None, bytes, list[tuple[str, bytes]]]] = {}
        apply_topics(self.admin, plan_topics([self.source]))

    def send(self, values: list[bytes], headers: list[tuple[str, bytes]] | None = None) -> None:
        """Send and remember what was acknowledged, by partition and offset."""
        producer = Producer({**self.config, "acks": "all", "enable.idempotence": True})

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            self.sent[message.partition(), message.offset()] = (message.key(), message.value() or b"", headers or [])

        for number, value in enumerate(values):
            key = f"k{number % 7}".encode() if number % 3 else None
            producer.produce(self.source.topic, value, key, headers=headers or [], on_delivery=delivered)
        assert producer.flush(30) == 0

    def send_events(self, count: int) -> None:
        """Valid events."""
        start = len(self.sent)
        self.send([json.dumps({"event_id": f"e{start + n}", "n": n}).encode() for n in range(count)])

    def archive(self, spark: SparkSession, prepare: Callable[[Archive], None] | None = None) -> Archive:
        """Run the archiver until it holds everything that Kafka holds now."""
        with ExitStack() as locks:
            archive = open_archive(self.settings, self.bootstrap, self.source, spark, locks)
            if prepare:
                prepare(archive)
            archive.start(spark, once=True).awaitTermination()
            return archive

    def rows(self) -> dict[tuple[int, int], tuple[bytes | None, bytes, list[tuple[str, bytes]]]]:
        """What the table holds, by partition and offset; a row that is there twice fails."""
        found: dict[tuple[int, int], Any] = {}
        for batch in read_records(self.table, RecordFilter(with_invalid=True)):
            for row in batch.to_pylist():
                place = (row["partition"], row["offset"])
                assert place not in found, f"{place} is in the table twice"
                headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
                found[place] = (row["key"], row["value"] or b"", headers)
        return found

    def damage(self) -> set[Trouble]:
        """What the quick check finds, stray files included."""
        return {finding.trouble for finding in quick_check(self.table)}

    def log_file(self, version: int) -> Path:
        return self.table / "_delta_log" / f"{version:020}.json"


def three_commits(spark: SparkSession, place: Place) -> list[int]:
    """Three commits of records. Returns their versions."""
    for _ in range(3):
        place.send_events(30)
        place.send(POISON[:2])
        place.archive(spark)
    return [commit.version for commit in read_commits(place.table) if commit.proof]


def repair_table(spark: SparkSession, place: Place) -> Report:
    """Repair twice: the second time there is nothing left to do."""
    report = repair(spark, place.settings, place.bootstrap, place.source, place.table)
    again = repair(spark, place.settings, place.bootstrap, place.source, place.table)
    assert (again.voided, again.restored_rows, again.remaining) == ([], 0, [])
    assert quick_check(place.table) == []
    assert spark.read.format("delta").load(str(place.table)).count() == len(place.rows())
    return report


def rows_proved(table: Path) -> int:
    return follow(effective_proofs(read_commits(table), {})).rows


def read_positions_latest(place: Place) -> dict[int, int]:
    return read_positions(place.settings, place.bootstrap, place.source).latest


def forget_records(place: Place) -> None:
    """Kafka drops all that it has of the records."""
    delete_records(place.admin, place.source.topic, read_positions_latest(place))


def make_topic_again(place: Place, topic: str = "") -> None:
    """That of the records, or another one of the source."""
    remove_topic(place, topic or place.source.topic)
    wait_until("the topic to be made again", lambda: apply_topics(place.admin, plan_topics([place.source])))


def remove_topic(place: Place, topic: str) -> None:
    """Returns when it is not listed any more."""
    delete_topic(place.admin, topic)
    wait_until("the topic to be gone", lambda: topic not in existing_topics(place.admin))


def drop_checksum(path: Path) -> None:
    """Hadoop keeps a checksum beside each file; a disk that loses a write loses that too, or not."""
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def empty(path: Path) -> None:
    path.write_bytes(b"")
    drop_checksum(path)
