"""The master dataset on a real Kafka: each offset exactly once, byte for byte, through crashes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from infra.clients.kafka import librdkafka_config
from infra.clients.kafka_admin import KafkaAdmin
from infra.home import read_json
from infra.spark.session import planned_end
from master_dataset.archiver.archive import Archive, checkpoint_folder, open_archive
from master_dataset.archiver.status import status_file
from master_dataset.cut import count_between
from master_dataset.dead_letters.letters import newest_first, read_letters, replay, watermarks
from master_dataset.kafka.positions import read_positions
from master_dataset.kafka.record import KafkaRecord
from master_dataset.kafka.send import send_records
from master_dataset.kafka.topics import alter_topic, delete_records
from master_dataset.reading.read import RecordFilter, read_records
from master_dataset.table import coverage
from master_dataset.table.append import TableBusy, commit_lock
from master_dataset.table.checks.fsck import Trouble, deep_check
from master_dataset.table.checks.repair import accept_loss
from master_dataset.table.compaction import compact
from master_dataset.table.coverage import effective_proofs, follow
from master_dataset.table.delta_log import read_commits
from master_dataset.table.ledger import read_ledger
from master_dataset.table.paths import table_path
from tests.conftest import Stack, start_stack, stop_stack, wait_until
from tests.system.master_source import (
    FIELDS,
    POISON,
    Place,
    read_positions_latest,
    rows_proved,
    three_commits,
)
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# ---- exactly once ------------------------------------------------------------


def test_every_record_is_kept_byte_for_byte_and_invalid_ones_with_their_reason(
    spark: SparkSession, place: Place
) -> None:
    place.send_events(300)
    place.send(POISON, headers=[("trace", b"\x00\x01"), ("trace", b"again")])
    place.archive(spark)
    assert place.rows() == place.sent
    found = spark.read.format("delta").load(str(place.table))
    assert found.where("invalid is null").count() == 300
    assert {row["invalid"] for row in found.where("invalid is not null").collect()} == {
        "not UTF-8", "not JSON", "n is not int", "more than one JSON value", "empty",
    }  # fmt: skip
    assert deep_check(spark, place.table) == []


def test_the_next_start_continues_where_the_table_ends(spark: SparkSession, place: Place) -> None:
    for _ in range(3):
        place.send_events(50)
        place.archive(spark)
    assert place.rows() == place.sent
    proofs = effective_proofs(read_commits(place.table), {})
    assert len(proofs) == 3
    assert follow(proofs).rows == 150
    assert read_ledger(place.table) == proofs


@pytest.mark.parametrize("where", ["archiver.before_commit", "archiver.after_commit"])
def test_a_crash_around_the_commit_loses_nothing_and_repeats_nothing(
    spark: SparkSession, place: Place, where: str
) -> None:
    from pyspark.errors import StreamingQueryException

    class CrashedError(Exception):
        pass

    def crash(name: str) -> None:
        if name == where:
            raise CrashedError(name)

    place.send_events(40)
    place.archive(spark)
    place.send_events(40)
    place.send(POISON)
    with pytest.raises(StreamingQueryException):
        place.archive(spark, lambda archive: setattr(archive, "failpoint", crash))
    place.send_events(40)
    place.archive(spark)
    assert place.rows() == place.sent
    assert len(list(newest_first(place.config, place.source))) == len(POISON)


def test_a_crash_before_the_first_commit_leaves_a_table_that_can_be_made(spark: SparkSession, place: Place) -> None:
    (place.table / "_delta_log").mkdir(parents=True)
    place.send_events(5)
    place.archive(spark)
    assert place.rows() == place.sent


def test_a_backlog_is_committed_in_pieces_of_so_many_mb(spark: SparkSession, place: Place) -> None:
    place.settings = place.settings.model_copy(update={"archive_max_mb": 0.5})
    place.send([json.dumps({"event_id": f"e{n}", "user_id": "u" * 2_000}).encode() for n in range(1_500)])
    place.archive(spark)
    first, *others = [proof.raw_bytes for proof in read_ledger(place.table).values()]
    assert first > 2**20  # nothing was known of their size
    assert len(others) == 3
    assert max(others) < 0.55 * 2**20
    assert first + sum(others) == sum(len(value) + len(key or b"") for key, value, _ in place.sent.values())
    # One that starts again knows the size from the table.
    place.send([json.dumps({"event_id": f"f{n}", "user_id": "u" * 2_000}).encode() for n in range(300)])
    place.archive(spark)
    assert max(proof.raw_bytes for proof in list(read_ledger(place.table).values())[1:]) < 0.55 * 2**20
    assert place.rows() == place.sent
    assert deep_check(spark, place.table) == []


def test_two_archivers_of_one_table_are_refused(spark: SparkSession, place: Place) -> None:
    with ExitStack() as first, ExitStack() as second:
        open_archive(place.settings, place.bootstrap, place.source, spark, first)
        with pytest.raises(TableBusy, match=str(os.getpid())):
            open_archive(place.settings, place.bootstrap, place.source, spark, second)


# ---- dead letters ------------------------------------------------------------


def test_dead_letters_keep_the_bytes_and_say_where_from_and_why(spark: SparkSession, place: Place) -> None:
    place.send(POISON, headers=[("trace", b"\x00\x01")])
    place.archive(spark)
    letters = list(newest_first(place.config, place.source))
    assert {
        (each.partition, each.offset): (each.key, each.value or b"", list(each.headers)) for each in letters
    } == place.sent
    assert {each.reason for each in letters if each.value == b"{"} == {"not JSON"}


def test_dead_letters_that_a_crash_held_back_are_sent_once(spark: SparkSession, place: Place) -> None:
    place.send(POISON)
    place.archive(spark)
    place.send(POISON)

    def crash_before_sending(archive: Archive) -> None:
        def fail(_version: int, _proof: Any) -> int:
            raise RuntimeError("killed here")

        archive.dead_letters.send = fail  # type: ignore[method-assign]

    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException):
        place.archive(spark, crash_before_sending)
    assert watermarks(place.config, place.source)[1] == len(POISON)
    place.archive(spark)
    place.archive(spark)
    letters = list(newest_first(place.config, place.source))
    assert sorted((each.partition, each.offset) for each in letters) == sorted(place.sent)


def test_a_replayed_dead_letter_comes_back_as_it_was(spark: SparkSession, place: Place) -> None:
    place.send([b'{"n":"three"}'], headers=[("trace", b"1")])
    place.archive(spark)
    assert replay(place.config, place.source, list(read_letters(place.config, place.source, 0, 1))) == 1
    place.archive(spark)
    first, second = sorted(place.rows().items())
    assert first[1] == second[1]


# ---- compaction, reading -----------------------------------------------------


def test_compaction_leaves_the_records_and_the_proof_as_they_were(spark: SparkSession, place: Place) -> None:
    three_commits(spark, place)
    done = compact(spark, place.table)
    assert (done.files_before, done.files_after, done.rows) == (3, 1, len(place.sent))
    assert deep_check(spark, place.table) == []
    place.send_events(10)
    place.archive(spark)
    assert place.rows() == place.sent
    assert deep_check(spark, place.table) == []


def test_records_are_read_back_by_offset_and_by_time(spark: SparkSession, place: Place) -> None:
    from datetime import UTC, datetime

    place.send(
        [
            b'{"event_id":"old","event_time":"2020-01-01T00:00:00Z"}',
            b'{"event_id":"new","event_time":"2026-01-01T00:00:00Z"}',
        ]
    )
    place.archive(spark)

    def ids(wanted: RecordFilter) -> set[str]:
        return {row["event_id"] for batch in read_records(place.table, wanted) for row in batch.to_pylist()}

    assert ids(RecordFilter()) == {"old", "new"}
    assert ids(RecordFilter(since=datetime(2021, 1, 1, tzinfo=UTC))) == {"new"}
    assert ids(RecordFilter(until=datetime(2021, 1, 1, tzinfo=UTC))) == {"old"}
    latest = read_positions_latest(place)
    assert ids(RecordFilter(end=latest)) == {"old", "new"}
    assert ids(RecordFilter(start=latest)) == set()


# ---- the process under the supervisor ----------------------------------------


def declare(folder: Path, name: str, partitions: int = 3) -> None:
    text = f"{name} = Source({name!r}, fields={FIELDS!r}, partitions={partitions})\n"
    (folder / f"{name}.py").write_text(f"from views.source import Source\n{text}", encoding="utf-8")


@pytest.fixture(scope="module")
def archiving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with an archiver, and two small sources beside no examples. 200 events are many bytes for one commit."""
    views = tmp_path_factory.mktemp("views")
    declare(views, "clicks")
    declare(views, "taps")
    running = start_stack(
        tmp_path_factory.mktemp("archiving") / "home",
        archiver_enabled=True,
        collector_enabled=False,
        views_dir=views,
        with_examples=False,
        archive_interval_s=0.5,
        archive_max_mb=0.1,
    )
    yield running
    stop_stack(running)


def kill_after_a_commit(stack: Stack, table: Path, send: Callable[[], int]) -> None:
    """Kill the archiver when it has just committed something, and wait for its successor."""
    before, held = stack.service("archiver")["pid"], rows_proved(table)
    send()
    wait_until("a commit", lambda: rows_proved(table) > held, 90)
    os.kill(before, signal.SIGKILL)
    wait_for_another(stack, before)


def kill_before_a_commit(stack: Stack, table: Path, send: Callable[[], int]) -> None:
    """Kill the archiver when rows are on the disk but in no commit, and wait for its successor."""
    left: set[str] = set()

    def send_once_more() -> int:
        nonlocal left
        left = files_of_no_commit(table)
        return send()

    def is_before() -> bool:
        return bool(files_of_no_commit(table) - left)

    kill_when("data files before their commit", is_before, stack, table, send_once_more)


def kill_within_a_micro_batch(stack: Stack, table: Path, send: Callable[[], int]) -> None:
    """Kill the archiver between two commits of one micro-batch, and wait for its successor."""
    begin: dict[int, int] = {}

    def send_once_more() -> int:
        nonlocal begin
        begin = coverage.of(table).cut
        return send()

    def is_in_part() -> bool:
        start, end = [begin, begin, *newest_plans(stack, table)][-2:]
        at = coverage.of(table).cut
        return bool(count_between(start, at) and count_between(at, end))

    kill_when("a micro-batch that is archived in part", is_in_part, stack, table, send_once_more)


def newest_plans(stack: Stack, table: Path) -> list[dict[int, int]]:
    """Where the last two micro-batches of a source end, as Spark planned them."""
    checkpoint = checkpoint_folder(stack.settings, table.name)
    numbers = sorted(int(file.name) for file in checkpoint.glob("offsets/*") if file.name.isdigit())
    return [planned_end(checkpoint, number, table.name) for number in numbers[-2:]]


def kill_when(what: str, condition: Callable[[], bool], stack: Stack, table: Path, send: Callable[[], int]) -> None:
    """Kill the archiver and its JVM while a condition holds; another time, if it was not seen or held no longer then.

    `send` says how many records there are when it has sent some.
    """

    def seen_or_missed(sent: int) -> str:
        if condition():
            return "seen"
        return "missed" if rows_proved(table) >= sent else ""

    for _attempt in range(5):
        before = stack.service("archiver")["pid"]
        sent = send()
        if wait_until(what, partial(seen_or_missed, sent), 90) == "missed":
            continue
        os.killpg(before, signal.SIGKILL)
        is_hit = condition()
        wait_for_another(stack, before)
        if is_hit:
            return
    pytest.fail(f"five times {what} were not seen, or over before the kill")


def wait_for_another(stack: Stack, killed: int) -> None:
    def is_back() -> bool:
        service = stack.service("archiver")
        return service["state"] == "ready" and service["pid"] != killed

    wait_until("the archiver to be back", is_back, 120)


def files_of_no_commit(table: Path) -> set[str]:
    there = {path.name for path in table.glob("*.parquet")}  # listed first: one that is committed meanwhile is no match
    return there - {file.path for commit in read_commits(table) for file in commit.added}


def test_kill_9_of_the_archiver_before_after_and_between_commits_loses_nothing_and_repeats_nothing(
    spark: SparkSession, archiving: Stack
) -> None:
    source = Source("clicks", fields=FIELDS)
    producer = Producer({**librdkafka_config(archiving.settings, archiving.kafka), "acks": "all"})
    table = table_path(archiving.settings, "clicks")
    sent = poisoned = 0

    def send() -> int:
        nonlocal sent, poisoned
        for _ in range(400):
            producer.produce("clicks", json.dumps({"event_id": f"c{sent}", "user_id": "u" * 500}).encode())
            sent += 1
        producer.produce("clicks", b"poison")
        poisoned += 1
        producer.flush()
        return sent + poisoned

    for kill in (kill_after_a_commit, kill_before_a_commit, kill_within_a_micro_batch):
        kill(archiving, table, send)
    wait_until("all rows", lambda: rows_proved(table) >= sent + poisoned, 120)
    found = [row for batch in read_records(table, RecordFilter(with_invalid=True)) for row in batch.to_pylist()]
    assert len({(row["partition"], row["offset"]) for row in found}) == len(found) == sent + poisoned
    assert {row["event_id"] for row in found if not row["invalid"]} == {f"c{n}" for n in range(sent)}
    # The files of the commit that was not made stay, named and harmless.
    left = {finding.where: finding.trouble for finding in deep_check(spark, table)}
    assert left == dict.fromkeys(files_of_no_commit(table), Trouble.STRAY_FILE)
    assert left
    config = librdkafka_config(archiving.settings, archiving.kafka)
    wait_until("the dead letters", lambda: watermarks(config, source)[1] >= poisoned)
    assert len(list(newest_first(config, source))) == poisoned


def test_a_source_that_kafka_changed_is_refused_with_its_remedy_while_the_others_go_on(
    spark: SparkSession, archiving: Stack
) -> None:
    settings, pid = archiving.settings, archiving.service("archiver")["pid"]
    config = librdkafka_config(settings, archiving.kafka)
    admin, producer = KafkaAdmin(settings, archiving.kafka), Producer({**config, "acks": "all"})
    taps, clicks = table_path(settings, "taps"), table_path(settings, "clicks")

    def send(topic: str, count: int) -> None:
        for number in range(count):
            producer.produce(topic, b'{"n":1}', partition=number % 3)
        assert producer.flush(30) == 0

    def refusal() -> str:
        return str(read_json(status_file(settings))["sources"]["taps"]["refused"])

    def others_go_on() -> None:
        held = rows_proved(clicks)
        send("clicks", 5)
        wait_until("the other source", lambda: rows_proved(clicks) == held + 5)

    # Partitions are added while it runs.
    send("taps", 9)
    wait_until("the first rows", lambda: rows_proved(taps) == 9)
    alter_topic(admin, "taps", 5, {})
    wait_until("the refusal", lambda: "partitions=5" in refusal())
    send_records(config, [KafkaRecord("taps", b'{"n":2}', b"new1")])  # its key chooses partition 4
    others_go_on()
    wait_until("the status to tell", lambda: "partitions=5" in archiving.service("archiver")["message"])
    assert not archiving.status()["ready"]
    assert rows_proved(taps) == 9
    assert settings.views_dir is not None
    declare(settings.views_dir, "taps", partitions=5)
    wait_until("the row of a new partition", lambda: rows_proved(taps) == 10)
    assert coverage.of(taps).cut == {0: 3, 1: 3, 2: 3, 3: 0, 4: 1}
    # Retention passes the position while it runs, between the plan of a micro-batch and its reading.
    source = Source("taps", fields=FIELDS, partitions=5)
    with commit_lock(taps):
        send("taps", 12)
        latest = read_positions(settings, archiving.kafka, source).latest
        wait_until("the plan", lambda: newest_plans(archiving, taps)[-1:] == [latest])
        delete_records(admin, "taps", latest)
    wait_until("the refusal", lambda: "--accept-loss" in refusal())
    others_go_on()
    assert rows_proved(taps) == 10
    gone = accept_loss(spark, source, taps, read_positions(settings, archiving.kafka, source))  # as the remedy does
    assert sum(each.size for each in gone) == 12
    send("taps", 6)
    wait_until("the rows behind the loss", lambda: rows_proved(taps) == 16)
    assert (coverage.of(taps).lost, coverage.of(taps).gaps) == (gone, [])
    wait_until("everything to be ready", lambda: archiving.status()["ready"])
    assert archiving.service("archiver")["pid"] == pid
