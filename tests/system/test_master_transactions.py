"""Kafka transactions and the master dataset: aborted records are not archived, and their offsets are no gap."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from confluent_kafka import Producer

from master_dataset.table import coverage
from master_dataset.table.checks.fsck import deep_check
from master_dataset.table.checks.repair import repair
from master_dataset.table.ledger import read_ledger
from tests.system.master_source import Place, empty, read_positions_latest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def send_in_transaction(place: Place, name: str, *, commit: bool) -> set[bytes]:
    """Five events for each partition, and how their transaction ends. Returns their values."""
    producer = Producer({**place.config, "transactional.id": f"{place.source.name}-{uuid4().hex}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    values = {f'{{"event_id":"{name}-{p}-{n}"}}'.encode(): p for p in range(place.source.partitions) for n in range(5)}
    for value, partition in values.items():
        producer.produce(place.source.topic, value, partition=partition)
    assert producer.flush(30) == 0  # so that the broker has those that are aborted, too
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)
    return set(values)


def values_of(place: Place) -> list[bytes]:
    return sorted(value for _, value, _ in place.rows().values())


def test_aborted_records_are_never_archived_and_their_offsets_are_no_gap(spark: SparkSession, place: Place) -> None:
    committed: set[bytes] = set()
    # The topic begins with aborted ones, then ends with them, then has nothing else; after each the archiver goes on.
    for number, commits in enumerate([(False, True), (True, False), (False,), (True,)]):
        for commit in commits:
            sent = send_in_transaction(place, f"t{number}", commit=commit)
            committed |= sent if commit else set()
        archive = place.archive(spark)
        assert archive.cut == read_positions_latest(place), "not everything was archived"
        assert values_of(place) == sorted(committed)
        assert place.damage() == set()
    place.send_events(10)
    place.archive(spark)
    expected = sorted({*committed, *(value for _, value, _ in place.sent.values())})
    assert values_of(place) == expected
    assert deep_check(spark, place.table) == []
    held = coverage.of(place.table)
    assert (held.cut, held.gaps, held.lost, held.rows) == (read_positions_latest(place), [], [], len(expected))
    # A repair reads the same, of a commit that held both and of one that held aborted records alone.
    for version in sorted(read_ledger(place.table))[1:3]:
        empty(place.log_file(version))
    report = repair(spark, place.settings, place.bootstrap, place.source, place.table)
    assert (report.lost, report.remaining) == ([], [])
    assert values_of(place) == expected
    assert place.damage() == set()
