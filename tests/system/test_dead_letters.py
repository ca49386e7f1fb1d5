"""Dead letters, once each whatever happens to table or topic, and records read back: by command line and by REST."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from kafka.partitioner.default import murmur2

from infra.clients.kafka import librdkafka_config
from infra.clients.kafka_admin import KafkaAdmin
from infra.settings import child_environment
from master_dataset.archiver.archive import Archive, open_archive
from master_dataset.cut import cut_from_json
from master_dataset.dead_letters import letters, outbox
from master_dataset.dead_letters.letters import (
    FOREIGN,
    ORIGIN,
    DeadLetter,
    ValueLeftOut,
    _dead_record,
    newest_first,
    read_letters,
    replay,
    send_letters,
    watermarks,
)
from master_dataset.dead_letters.outbox import DeadLetters
from master_dataset.dead_letters.sent import read_sent, sent_file
from master_dataset.kafka.record import KafkaRecord
from master_dataset.kafka.send import send_records
from master_dataset.kafka.topics import (
    TopicPlan,
    alter_topic,
    apply_topics,
    create_topic,
    delete_records,
    delete_topic,
    existing_topics,
    plan_topics,
)
from master_dataset.table.checks.repair import repair
from master_dataset.table.compaction import compact
from master_dataset.table.delta_log import live_files, read_commits
from master_dataset.table.history import read_history
from master_dataset.table.proofs import Kind, Proof
from tests.conftest import Stack, wait_until
from tests.system.master_source import FIELDS, POISON, Place, make_topic_again, remove_topic
from views.catalog.web import web
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AN_HOUR_AGO_MS = int(time.time() - 3600) * 1000


def letters_of(place: Place) -> list[DeadLetter]:
    return list(newest_first(place.config, place.source))


def places_of(place: Place) -> list[tuple[int, int]]:
    return sorted((letter.partition, letter.offset) for letter in letters_of(place))


def invalid_row(offset: int, **values: Any) -> dict[str, Any]:
    """A row of a master table, as far as dead letters look at it."""
    time_of_it = datetime.fromtimestamp(AN_HOUR_AGO_MS / 1000, UTC)
    row = {"partition": 0, "offset": offset, "timestamp": time_of_it, "key": b"k", "value": b"{", "invalid": "not JSON"}
    return {**row, "headers": [{"key": "trace", "value": b"1"}], **values}


def catch_up(place: Place) -> int:
    """What the next start of the archiver does. Returns how many dead letters it sends."""
    dead_letters = DeadLetters(place.settings, place.bootstrap, place.source, place.table)
    sent = dead_letters.catch_up(read_history(place.table))
    assert not dead_letters.is_behind
    return sent


def hold_back(archive: Archive) -> None:
    """As if the archiver was killed between a commit and its dead letters."""
    archive.dead_letters.send = lambda _version, _proof: 0  # type: ignore[method-assign]


# ---- each once ---------------------------------------------------------------


def test_a_compaction_or_a_repair_sends_no_dead_letter_again(spark: SparkSession, place: Place) -> None:
    for _ in range(2):
        place.send(POISON)
        place.archive(spark)
    compact(spark, place.table)
    assert catch_up(place) == 0
    for file in live_files(read_commits(place.table)).values():
        (place.table / file.path).unlink()
    assert repair(spark, place.settings, place.bootstrap, place.source, place.table).remaining == []
    assert catch_up(place) == 0
    assert places_of(place) == sorted(place.sent)


def test_dead_letters_that_a_crash_held_back_are_found_where_a_compaction_put_them(
    spark: SparkSession, place: Place
) -> None:
    for prepare in (None, hold_back):
        place.send(POISON)
        place.archive(spark, prepare)
    assert len(letters_of(place)) == len(POISON)
    compact(spark, place.table)
    live = live_files(read_commits(place.table))
    for file in place.table.glob("*.parquet"):
        if file.name not in live:
            file.unlink()
    assert catch_up(place) == len(POISON)
    assert places_of(place) == sorted(place.sent)


def test_a_topic_that_takes_nothing_stops_neither_the_archiver_nor_its_start(spark: SparkSession, place: Place) -> None:
    remove_topic(place, place.source.dead_topic)
    place.send(POISON)
    place.archive(spark)
    assert place.rows() == place.sent
    with ExitStack() as locks:
        archive = open_archive(place.settings, place.bootstrap, place.source, spark, locks)
    wait_until("the topic to be made again", lambda: apply_topics(place.admin, plan_topics([place.source])))
    archive.dead_letters.send(2, Proof(Kind.APPEND))  # the next commit, which has no invalid records
    assert places_of(place) == sorted(place.sent)


def test_a_topic_that_was_emptied_is_not_filled_with_old_dead_letters_again(spark: SparkSession, place: Place) -> None:
    topic = place.source.dead_topic
    for empty in (
        lambda: make_topic_again(place, topic),
        lambda: delete_records(place.admin, topic, {0: watermarks(place.config, place.source)[1]}),
    ):
        place.sent.clear()
        place.send(POISON)
        place.archive(spark)
        assert places_of(place) == sorted(place.sent)
        empty()
        assert catch_up(place) == 0
        assert letters_of(place) == []
    # What the archiver did not come to send before it was killed goes out all the same.
    place.sent.clear()
    place.send(POISON)
    place.archive(spark, hold_back)
    assert catch_up(place) == len(POISON)
    # Without the note, the letters that are still in the topic are recognized, and the others are sent again.
    sent_file(place.table).unlink()
    assert catch_up(place) == 2 * len(POISON)
    newest = max(commit.version for commit in read_commits(place.table))
    assert read_sent(place.table) == (newest, watermarks(place.config, place.source)[1])
    assert len(letters_of(place)) == 3 * len(POISON)
    assert catch_up(place) == 0


def test_dead_letters_behind_an_open_transaction_of_others_are_not_sent_again(
    spark: SparkSession, place: Place
) -> None:
    producer = Producer({**place.config, "transactional.id": uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(place.source.dead_topic, b"by hand")
    producer.flush(30)
    place.send(POISON)
    place.archive(spark)
    assert catch_up(place) == 0
    producer.abort_transaction(30)
    wait_until("the end of the transaction", lambda: letters_of(place))
    assert places_of(place) == sorted(place.sent)


def test_a_record_as_large_as_kafka_takes_becomes_a_dead_letter(place: Place) -> None:
    value = b"x" * 1_048_400
    send_records(place.config, [KafkaRecord(place.source.topic, value, b"k")])
    send_letters(place.config, place.source, 1, [invalid_row(0, value=value)])
    (letter,) = letters_of(place)
    assert (letter.key, letter.value, letter.left_out_bytes) == (b"k", value, None)


def test_what_the_topic_does_not_take_is_left_out_and_named(place: Place) -> None:
    alter_topic(place.admin, place.source.dead_topic, None, {"max.message.bytes": "1000"})
    rows = [
        invalid_row(0),
        invalid_row(1, value=b"x" * 5000),
        invalid_row(2, headers=[{"key": "trace", "value": b"x" * 5000}]),
        *(invalid_row(number, value=b"y" * 300) for number in range(3, 9)),  # together too large, each of them not
    ]
    assert send_letters(place.config, place.source, 1, rows) == len(rows)
    found = {each.offset: each for each in letters_of(place)}
    assert len(found) == len(rows)
    assert {each.offset for each in found.values() if each.left_out_bytes is not None} == {1, 2}
    assert (found[1].key, found[1].value, found[1].headers) == (b"k", None, (("trace", b"1"),))
    assert (found[1].left_out_bytes, found[1].reason) == (5000, "not JSON")
    assert (found[2].key, found[2].value, found[2].headers, found[2].left_out_bytes) == (None, None, (), 1)
    with pytest.raises(ValueLeftOut, match="--from 0:1 --to 0:2"):
        replay(place.config, place.source, [found[0], found[1]])
    assert watermarks_of(place.config, place.source.topic, 3) == 0


def test_messages_of_others_between_ours_hide_nothing_that_was_sent(spark: SparkSession, place: Place) -> None:
    place.send(POISON)
    place.archive(spark, hold_back)
    version, rows = held_back(place)
    for row in rows[:2]:
        send_letters(place.config, place.source, version, [row])
        send_records(place.config, [KafkaRecord(place.source.dead_topic, b"by hand")])
    assert catch_up(place) == len(POISON) - 2
    assert [each for each in places_of(place) if each != (-1, -1)] == sorted(place.sent)


def held_back(place: Place) -> tuple[int, list[dict[str, Any]]]:
    """The newest commit, and its invalid rows, as the archiver would send them."""
    commit = [commit for commit in read_commits(place.table) if commit.proof][-1]
    assert commit.proof is not None
    dead_letters = DeadLetters(place.settings, place.bootstrap, place.source, place.table)
    return commit.version, list(dead_letters._invalid_rows(commit.added, commit.proof))


def test_forged_letters_make_the_archiver_pass_over_none_of_its_own(spark: SparkSession, place: Place) -> None:
    """With the version of this commit and of one far ahead; about its records; also those with other bytes."""
    place.send(POISON)
    place.archive(spark)
    place.send(POISON)
    place.archive(spark, hold_back)
    version, rows = held_back(place)
    for claimed in (version, version + 1, 10**9, 2**63):
        forged = [{**row, "value": b"forged", "invalid": "forged"} for row in rows]
        send_letters(place.config, place.source, claimed, forged)
    assert catch_up(place) == len(POISON)
    ours = [letter for letter in letters_of(place) if letter.reason != "forged"]
    assert sorted((letter.partition, letter.offset) for letter in ours) == sorted(place.sent)
    assert {letter.value for letter in ours} == set(POISON)
    assert catch_up(place) == 0


def test_a_letter_in_a_transaction_that_was_aborted_was_not_sent(spark: SparkSession, place: Place) -> None:
    """A forger who knows every byte of it could hide it so: nobody who reads would ever get it."""
    place.send(POISON)
    place.archive(spark, hold_back)
    version, rows = held_back(place)
    transactional = {**place.config, "transactional.id": uuid4().hex}
    producer = Producer(transactional)
    producer.init_transactions(30)
    producer.begin_transaction()
    for row in rows:
        record = _dead_record(place.source, version, row)
        producer.produce(record.topic, record.value, record.key, headers=list(record.headers))
    producer.flush(30)
    producer.abort_transaction(30)
    assert catch_up(place) == len(POISON)
    assert places_of(place) == sorted(place.sent)


def test_a_letter_that_arrives_after_the_search_is_read_once(spark: SparkSession, place: Place) -> None:
    """A request was on its way when the archiver was killed: the topic gets the letter twice."""
    place.send(POISON)
    place.archive(spark)
    version, rows = held_back(place)
    send_letters(place.config, place.source, version, rows[1:3])
    first, end = watermarks(place.config, place.source)
    assert end - first == len(POISON) + 2
    assert places_of(place) == sorted(place.sent)
    forward = list(read_letters(place.config, place.source, first, end))
    assert [letter.number for letter in forward] == list(range(first, first + len(POISON)))
    assert {letter.id for letter in forward} == {letter.id for letter in letters_of(place)}
    assert replay(place.config, place.source, forward) == len(POISON)


def test_a_crash_at_any_point_leaves_each_letter_once(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, point in enumerate(
        ["before_catching_up", "after_search", "before_send", "after_send", "after_note"], 1
    ):
        place.send(POISON)
        place.archive(spark, hold_back)
        with monkeypatch.context() as patched:
            patched.setattr(outbox, "reach", partial(crash_at, f"letters.{point}"))
            crashed = DeadLetters(place.settings, place.bootstrap, place.source, place.table)
            crashed.catch_up(read_commits(place.table))
            assert crashed.is_behind, point
        catch_up(place)
        first, end = watermarks(place.config, place.source)
        assert end - first == number * len(POISON), f"{point}: each is even in the topic once"
        assert places_of(place) == sorted(place.sent), point


def crash_at(point: str, name: str) -> None:
    if name == point:
        raise Crashed(name)


class Crashed(Exception):
    """As if the process had been killed there."""


def test_a_topic_that_others_fill_delays_the_archiver_for_a_while_at_most(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.send(POISON)
    place.archive(spark, hold_back)
    version, rows = held_back(place)
    send_records(place.config, [KafkaRecord(place.source.dead_topic, b"%d" % n) for n in range(30)])
    send_letters(place.config, place.source, version, rows)
    monkeypatch.setattr(letters, "MAX_SEARCHED", 20)
    assert catch_up(place) == len(POISON), "the search ended before it came to them"
    assert [each for each in places_of(place) if each != (-1, -1)] == sorted(place.sent), "and who reads gets one each"


def test_an_open_transaction_of_others_holds_no_letter_back(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "READ_TIMEOUT_S", 2.0)
    producer = Producer({**place.config, "transactional.id": uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(place.source.dead_topic, b"by hand")
    producer.flush(30)
    place.send(POISON)
    place.archive(spark, hold_back)
    assert catch_up(place) == len(POISON)
    producer.abort_transaction(30)
    wait_until("the end of the transaction", lambda: letters_of(place))
    assert places_of(place) == sorted(place.sent)


def test_a_message_of_others_is_shown_as_such_and_sent_again_as_it_is(place: Place) -> None:
    half = (("tidemark-partition", b"0"), ("tidemark-offset", b"x"))
    forged = tuple((f"tidemark-{name}", b"x") for name in ORIGIN)
    not_text = tuple((f"tidemark-{name}", b"\xff" if name == "reason" else b"1") for name in ORIGIN)
    short = (*((f"tidemark-{name}", b"1") for name in ORIGIN), ("tidemark-too-large", b"many"))
    dead = place.source.dead_topic
    others = [KafkaRecord(dead, b"hello", b"k", (("h", b"1"),)), KafkaRecord(dead, None), KafkaRecord(dead, b"")]
    others += [KafkaRecord(dead, b"v", headers=headers) for headers in (half, forged, not_text, short)]
    send_records(place.config, others)
    letters = letters_of(place)[::-1]
    assert {(each.reason, each.partition, each.offset, each.version) for each in letters} == {(FOREIGN, -1, -1, -1)}
    assert [(each.key, each.value, each.headers) for each in letters] == [
        (each.key, each.value, each.headers) for each in others
    ]
    assert replay(place.config, place.source, letters) == len(others)
    again = messages_of(place.config, place.source.topic, 3)
    assert sorted(str((m.key(), m.value(), tuple(m.headers() or ()))) for m in again) == sorted(
        str((each.key, each.value, each.headers)) for each in others
    )


# ---- on the command line -----------------------------------------------------


class Shell:
    """`tidemark` on the running stack, with a source of its own and the table of that."""

    def __init__(self, stack: Stack, folder: Path, spark: SparkSession) -> None:
        self.place = Place(stack, folder / "master")
        (folder / "views").mkdir()
        declaration = f"from views.source import Source\ns = Source({self.place.source.name!r}, fields={FIELDS!r})\n"
        (folder / "views" / "mine.py").write_text(declaration)
        self.settings = stack.settings.model_copy(
            update={"master_dir": folder / "master", "views_dir": folder / "views", "with_examples": False}
        )
        self.values = [f'{{"event_id":"e{n}","n":{n}}}'.encode() for n in range(20)] + [b"{"]
        self.records = [
            KafkaRecord(self.place.source.topic, value, f"k{n}".encode(), (("trace", b"\xff"),), AN_HOUR_AGO_MS + n)
            for n, value in enumerate(self.values)
        ]
        send_records(self.place.config, self.records)
        self.archive = self.place.archive(spark)

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tidemark", *arguments],
            capture_output=True,
            text=True,
            env=child_environment(self.settings) | environment,
            check=False,
            timeout=60,
        )

    def read(self, *options: str) -> list[Any]:
        """The records that `tidemark master read` writes."""
        done = self("master", "read", self.place.source.name, *options)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def tidemark(stack: Stack, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(stack, tmp_path_factory.mktemp("shell"), spark)


def messages_of(config: dict[str, Any], topic: str, partitions: int) -> list[Message]:
    """Everything in a topic."""
    consumer = Consumer({**config, "group.id": "t", "enable.partition.eof": True, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found, ended = [], 0
    while ended < partitions:
        for message in consumer.consume(100, 1):
            ended += 1 if message.error() else 0
            found += [] if message.error() else [message]
    consumer.close()
    return found


def watermarks_of(config: dict[str, Any], topic: str, partitions: int) -> int:
    """How many messages a topic has."""
    return len(messages_of(config, topic, partitions))


def test_master_status_and_fsck(tidemark: Shell, tmp_path: Path) -> None:
    (status,) = json.loads(tidemark("master", "status", "-o", "json").stdout)
    assert (status["lost offsets"], status["unproved rows"]) == (0, 0)
    assert status["archiver"] == "it has not written its status yet"
    assert (status["source"], status["rows"], status["behind Kafka"]) == (tidemark.place.source.name, 21, 0)
    assert cut_from_json(status["cut"]) == tidemark.archive.cut
    whole = tidemark("master", "fsck")
    assert (whole.returncode, whole.stdout.startswith("Every commit follows")) == (0, True), whole.stderr
    damaged = tmp_path / "master"
    shutil.copytree(tidemark.settings.master_dir or "", damaged)
    max(damaged.glob("*/_delta_log/*.json")).write_bytes(b"")
    found = tidemark("master", "fsck", "-o", "json", TIDEMARK_MASTER_DIR=str(damaged))
    assert found.returncode == 1
    assert "empty" in found.stdout


def test_master_read_by_cut_and_into_parquet(tidemark: Shell, tmp_path: Path) -> None:
    everything = tidemark.read("--with-invalid")
    assert sorted(row["value"].encode() for row in everything) == sorted(tidemark.values)
    assert {row["value"] for row in everything if "invalid" in row} == {"{"}
    assert len(tidemark.read()) == 20
    partition, end = max(tidemark.archive.cut.items(), key=lambda pair: pair[1])
    later = tidemark.read("--with-invalid", "--from", f"{partition}:{end}")
    assert later == [row for row in everything if row["partition"] != partition]
    assert later != []
    earlier = tidemark.read("--with-invalid", "--to", f"{partition}:1")
    assert [(row["partition"], row["offset"]) for row in earlier] == [(partition, 0)]
    file = tmp_path / "records.parquet"
    tidemark.read("--format", "parquet", "--out", str(file))
    assert sorted(pq.read_table(file)["value"].to_pylist()) == sorted(tidemark.values[:-1])
    wrong = tidemark("master", "read", tidemark.place.source.name, "--from", "0=1")
    assert wrong.returncode == 2


def test_master_replay_keeps_everything_of_a_record_and_its_key_chooses_the_partition(tidemark: Shell) -> None:
    topic = f"{tidemark.place.source.name}.again"
    create_topic(tidemark.place.admin, TopicPlan(topic, 5, {}))
    done = tidemark("master", "replay", tidemark.place.source.name, topic)
    assert done.stdout == f"Sent 21 records to {topic}.\n", done.stderr
    found = messages_of(tidemark.place.config, topic, 5)
    came = {(m.key(), m.value(), tuple(m.headers() or ()), m.timestamp()[1]) for m in found}
    assert came == {(each.key, each.value, each.headers, each.timestamp_ms) for each in tidemark.records}
    assert {m.key(): m.partition() for m in found} == {
        record.key: (murmur2(record.key) & 0x7FFFFFFF) % 5 for record in tidemark.records
    }


def test_dead_list_show_and_replay(tidemark: Shell) -> None:
    source, config = tidemark.place.source, tidemark.place.config
    send_records(config, [KafkaRecord(source.dead_topic, b"by hand")])
    assert catch_up(tidemark.place) == 0
    send_letters(config, source, 9, [invalid_row(7, value=b"")])
    listed = json.loads(tidemark("dead", "list", source.name, "-o", "json").stdout)
    assert [(one["number"], one["reason"]) for one in listed] == [(2, "not JSON"), (1, FOREIGN), (0, "not JSON")]
    assert (listed[1]["partition"], listed[1]["offset"], listed[1]["value"]) == (-1, -1, "by hand")
    shown = json.loads(tidemark("dead", "show", source.name, "0").stdout)
    assert (shown["key"], shown["value"], shown["timestamp"]) == ("k20", "{", AN_HOUR_AGO_MS + 20)
    assert shown["headers"] == [{"key": "trace", "value_base64": "/w=="}]
    done = tidemark("dead", "replay", source.name, "0")
    assert done.stdout == f"Sent 1 records to {source.topic} again.\n", done.stderr
    again = [m for m in messages_of(config, source.topic, 3) if m.value() == b"{"]
    assert len({(m.key(), m.partition(), m.timestamp()[1]) for m in again}) == 1
    assert len(again) == 2
    missing = tidemark("dead", "show", source.name, "77")
    assert (missing.returncode, "There are 0 to 2." in missing.stderr) == (1, True)


def test_the_end_of_a_transaction_is_no_letter_and_nobody_waits_for_it(tidemark: Shell) -> None:
    place = tidemark.place
    before = watermarks(place.config, place.source)[1]
    end_a_transaction(place.config, place.source)
    assert letters_of(place)[0].number == before
    missing = tidemark("dead", "show", place.source.name, str(before + 1))
    assert (missing.returncode, missing.stdout) == (1, "")
    assert f"has no dead letter {before + 1}: a transaction ends there" in missing.stderr


def end_a_transaction(config: dict[str, Any], source: Source) -> None:
    """One record and, behind it, Kafka's mark that its transaction is committed."""
    before = watermarks(config, source)[1]
    producer = Producer({**config, "transactional.id": uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(source.dead_topic, b"by hand")
    producer.commit_transaction(30)
    wait_until("the transaction's end in the topic", lambda: watermarks(config, source)[1] == before + 2)


# ---- by REST -----------------------------------------------------------------


@pytest.fixture
def client(stack: Stack, collector_alone: None) -> Iterator[httpx.Client]:
    with stack.client() as made:
        yield made


@pytest.fixture
def web_letters(stack: Stack) -> tuple[dict[str, Any], int]:
    """How to reach Kafka, and the number of the first of three dead letters of `web`; the last is foreign."""
    config = librdkafka_config(stack.settings, stack.kafka)
    first = watermarks(config, web)[1]
    rows = [invalid_row(0), invalid_row(1, value=b"\xff" * 300, invalid="not UTF-8")]
    send_letters(config, web, 1, rows)
    send_records(config, [KafkaRecord(web.dead_topic, b"by hand")])
    return config, first


def test_dead_letters_by_rest(client: httpx.Client, web_letters: tuple[dict[str, Any], int]) -> None:
    first = web_letters[1]
    listed = client.get("/dead/web", params={"limit": 2})
    assert [one["number"] for one in listed.json()] == [first + 2, first + 1]
    foreign, bytes_only = listed.json()
    assert (foreign["reason"], foreign["partition"], foreign["offset"], foreign["value"]) == (
        FOREIGN,
        -1,
        -1,
        "by hand",
    )
    assert bytes_only["value_base64"].startswith("////")
    one = client.get(f"/dead/web/{first}").json()
    assert re.fullmatch("[0-9a-f]{32}", one.pop("id"))
    assert one == {
        "number": first,
        "partition": 0,
        "offset": 0,
        "timestamp": AN_HOUR_AGO_MS,
        "reason": "not JSON",
        "key": "k",
        "headers": [{"key": "trace", "value": "1"}],
        "value": "{",
    }


def test_a_dead_letter_is_sent_again_by_rest(client: httpx.Client, web_letters: tuple[dict[str, Any], int]) -> None:
    config, first = web_letters
    before = watermarks_of(config, web.topic, web.partitions)
    answer = client.post("/dead/web/replay", params={"first": first, "last": first + 1})
    assert (answer.status_code, answer.json()) == (200, {"topic": "web", "sent": 2})
    found = messages_of(config, web.topic, web.partitions)
    assert len(found) == before + 2
    again = [m for m in found if m.value() == b"{" and m.timestamp()[1] == AN_HOUR_AGO_MS]
    assert {(m.key(), tuple(m.headers() or ())) for m in again} == {(b"k", (("trace", b"1"),))}


def test_the_end_of_a_transaction_is_no_letter_by_rest(
    client: httpx.Client, web_letters: tuple[dict[str, Any], int]
) -> None:
    config, first = web_letters
    end_a_transaction(config, web)
    assert client.get("/dead/web", params={"limit": 1}).json()[0]["number"] == first + 3
    for answer in (client.get(f"/dead/web/{first + 4}"), client.post(f"/dead/web/replay?first={first + 4}")):
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:tidemark:problem:unknown-dead-letter")


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/dead/nothing", 404, "unknown-source"),
        ("GET", "/dead/web/999999", 404, "unknown-dead-letter"),
        ("POST", "/dead/web/replay?first=999999", 404, "unknown-dead-letter"),
    ],
)
def test_what_is_not_there_is_named(client: httpx.Client, method: str, path: str, status: int, kind: str) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, answer.json()["type"]) == (status, f"urn:tidemark:problem:{kind}")


@pytest.mark.parametrize(
    "path", ["/dead/web?limit=0", "/dead/web/one", "/dead/web/replay", "/dead/web/replay?first=-1"]
)
def test_a_wrong_parameter_is_the_callers_mistake(client: httpx.Client, path: str) -> None:
    answer = client.request("POST" if "replay" in path else "GET", path)
    assert 400 <= answer.status_code < 500


def test_kafka_refusing_is_503_and_a_value_left_out_409(
    stack: Stack, client: httpx.Client, web_letters: tuple[dict[str, Any], int]
) -> None:
    config, first = web_letters
    admin = KafkaAdmin(stack.settings, stack.kafka)
    alter_topic(admin, web.topic, None, {"max.message.bytes": "200"})
    try:
        refused = client.post("/dead/web/replay", params={"first": first + 1})
    finally:
        alter_topic(admin, web.topic, None, {"max.message.bytes": "1048588"})
    assert_unavailable(refused, "larger than topic 'web' takes")
    alter_topic(admin, web.dead_topic, None, {"max.message.bytes": "400"})
    try:
        send_letters(config, web, 2, [invalid_row(2, value=b"x" * 500)])
    finally:
        alter_topic(admin, web.dead_topic, None, plan_topics([web])[1].configs)
    assert client.get(f"/dead/web/{first + 3}").json()["left_out_bytes"] == 500
    assert client.post("/dead/web/replay", params={"first": first + 3}).status_code == 409


@pytest.mark.usefixtures("web_letters")
def test_a_topic_that_cannot_be_read_is_503(stack: Stack, client: httpx.Client) -> None:
    admin = KafkaAdmin(stack.settings, stack.kafka)
    delete_topic(admin, web.dead_topic)
    try:
        wait_until("the topic to be gone", lambda: web.dead_topic not in existing_topics(admin))
        for answer in (client.get("/dead/web"), client.get("/dead/web/0"), client.post("/dead/web/replay?first=0")):
            assert_unavailable(answer, "'web.dead' could not be read")
    finally:
        wait_until("the topic to be made again", lambda: apply_topics(admin, plan_topics([web])))


def assert_unavailable(answer: httpx.Response, why: str) -> None:
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json"), answer.text
    assert why in answer.json()["detail"]
    assert "retry-after" in answer.headers
