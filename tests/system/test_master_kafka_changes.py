"""Kafka changes under the archiver's feet: a loud stop with the remedy, never a skip."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from master_dataset.kafka.positions import OffsetsGone, PartitionsDiffer, TopicReplaced, read_positions
from master_dataset.kafka.topics import alter_topic
from master_dataset.table.checks.fsck import Trouble
from master_dataset.table.checks.repair import accept_loss
from tests.conftest import wait_until
from tests.system.master_source import (
    Place,
    empty,
    forget_records,
    make_topic_again,
    read_positions_latest,
    repair_table,
    rows_proved,
    three_commits,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_another_topic_of_the_same_name_neither_repairs_nor_excuses_anything(spark: SparkSession, place: Place) -> None:
    version = three_commits(spark, place)[1]
    held = dict(place.sent)
    make_topic_again(place)
    place.send_events(200)
    empty(place.log_file(version))  # its data file is still there
    report = repair_table(spark, place)
    assert (report.restored_rows, report.lost, report.remaining) == (32, [], [])
    assert place.rows() == held
    positions = read_positions(place.settings, place.bootstrap, place.source)
    with pytest.raises(TopicReplaced):
        accept_loss(spark, place.source, place.table, positions)
    with pytest.raises(TopicReplaced):
        place.archive(spark)


def test_a_topic_made_again_while_the_archiver_runs_is_noticed_before_the_commit(
    spark: SparkSession, place: Place
) -> None:
    from pyspark.errors import StreamingQueryException

    place.send_events(20)
    place.archive(spark)
    place.send_events(20)
    held = rows_proved(place.table)
    with pytest.raises(StreamingQueryException, match="deleted and made again"):
        place.archive(spark, lambda archive: setattr(archive, "topic_id", "the id it had before"))
    assert rows_proved(place.table) == held


def test_a_topic_that_was_made_again_stops_the_archiver(spark: SparkSession, place: Place) -> None:
    place.send_events(20)
    place.archive(spark)
    make_topic_again(place)
    with pytest.raises(TopicReplaced, match="deleted and made again"):
        place.archive(spark)


def test_added_partitions_stop_the_archiver_until_they_are_declared(spark: SparkSession, place: Place) -> None:
    place.send_events(20)
    place.archive(spark)
    alter_topic(place.admin, place.source.topic, 5, {})
    wait_until("the new partitions", lambda: len(read_positions_latest(place)) == 5)
    with pytest.raises(PartitionsDiffer, match="partitions=5"):
        place.archive(spark)
    place.source = replace(place.source, partitions=5)
    place.send_events(50)
    place.archive(spark)
    assert place.rows() == place.sent
    assert {partition for partition, _ in place.rows()} > {0, 1, 2}


def test_retention_passing_the_position_stops_until_the_loss_is_accepted(spark: SparkSession, place: Place) -> None:
    place.send_events(20)
    place.archive(spark)
    held = dict(place.rows())
    place.send_events(20)
    forget_records(place)
    with pytest.raises(OffsetsGone, match="--accept-loss") as caught:
        place.archive(spark)
    assert sum(each.size for each in caught.value.gone) == 20
    positions = read_positions(place.settings, place.bootstrap, place.source)
    assert accept_loss(spark, place.source, place.table, positions) == caught.value.gone
    place.sent.clear()
    place.send_events(20)
    place.archive(spark)
    assert place.rows() == {**held, **place.sent}
    assert place.damage() == {Trouble.LOST}
