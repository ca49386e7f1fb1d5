"""What may go wrong around the speed layer, on real Kafka, Redis and Spark: nothing is counted twice or left out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from confluent_kafka import Producer

from hand_off.speed_views import StateRange, cut_text
from infra.clients.kafka_admin import KafkaAdmin
from infra.home import Home
from infra.process_status import status_path, write_status
from infra.settings import child_environment
from master_dataset.kafka.topics import (
    alter_topic,
    apply_topics,
    delete_records,
    delete_topic,
    existing_topics,
    plan_topics,
)
from speed_layer import stream
from speed_layer.process import status_of
from tests.conftest import Stack, wait_until
from views import states
from views.in_memory import Event
from views.keys import pack_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from tests.system.speed_source import RedisServer, SpeedPlace

KILLED = -signal.SIGKILL
HORIZON_S = 600
TIDEMARK = str(Path(sys.executable).with_name("tidemark"))


@pytest.fixture
def place(stack: Stack, tmp_path: Path, redis: RedisServer, spark: SparkSession) -> Callable[..., SpeedPlace]:
    """A source with settings of its own."""
    from tests.system.speed_source import SpeedPlace

    return lambda **overrides: SpeedPlace(stack, tmp_path, redis, spark, **overrides)


def test_a_micro_batch_that_is_delivered_again_counts_once(
    place: Callable[..., SpeedPlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks are off: they would hide it."""
    speed, take = place(speed_dedup_horizon_s=0), stream.Stream.take

    def take_twice(self: stream.Stream, rows: DataFrame, batch_id: int) -> None:
        take(self, rows, batch_id)
        take(self, rows, batch_id)

    monkeypatch.setattr(stream.Stream, "take", take_twice)
    with speed.keeping() as writer:
        for deliveries in (2, 4):
            speed.send(copies=0)
            speed.wait_until_applied()
            wait_until("it to be delivered again", lambda wanted=deliveries: writer.pace.micro_batches >= wanted, 30)
            speed.caught_up()
        assert writer.starts == 1


def test_kill_9_inside_the_atomic_step(speed: SpeedPlace, redis: RedisServer) -> None:
    """Redis has half of the script's call, or has run it and its reply is under way, when the writer is killed."""
    from tests.system.speed_source import Proxy

    proxy, apply = Proxy(redis), speed.speed_views._scripts["apply"]
    redis.client.script_load(apply.script)
    speed.settings = speed.settings.model_copy(update={"redis_url": proxy.url})
    try:
        for is_sent in (False, True):
            speed.send()
            called: list[int] = []

            def request(sent: bytes, called: list[int] = called, is_sent: bool = is_sent) -> bytes:
                if apply.sha.encode() not in sent:
                    return sent
                called.append(len(sent))
                proxy.is_deaf = True
                return sent if is_sent else sent[: len(sent) // 2]

            before = speed.speed_views.reader.snapshot().meta
            proxy.request = request
            victim = speed.process()
            wait_until("the call of the script", lambda called=called: called, 120)
            if is_sent:
                wait_until("Redis to run it", lambda: speed.speed_views.reader.snapshot().meta.applied, 20)
            victim.kill()
            assert victim.wait(timeout=20) == KILLED
            meta = speed.speed_views.reader.snapshot().meta
            assert bool(meta.applied) == is_sent, (before, meta)
            if is_sent:
                assert speed.check() > 0
            proxy.is_deaf = False
            proxy.request = lambda sent: sent
        with speed.keeping():
            speed.send()
            speed.caught_up()
    finally:
        proxy.close()


def test_redis_killed_while_it_runs_the_atomic_step(speed: SpeedPlace, redis: RedisServer) -> None:
    from tests.system.speed_source import Proxy

    proxy, apply = Proxy(redis), speed.speed_views._scripts["apply"]
    speed.settings = speed.settings.model_copy(update={"redis_url": proxy.url})
    try:
        with speed.keeping() as writer:
            speed.send()
            speed.caught_up()
            kills: list[int] = []

            def request(sent: bytes) -> bytes:
                if apply.sha.encode() in sent and not kills:
                    assert redis.process is not None
                    os.kill(redis.process.pid, signal.SIGSTOP)
                    proxy.is_deaf = True  # it may run a while before it dies
                    kills.append(redis.process.pid)
                return sent

            proxy.request = request
            speed.send()
            wait_until("the call of the script", lambda: kills, 30)
            os.kill(kills[0], signal.SIGCONT)
            redis.kill()
            proxy.is_deaf = False
            redis.start()
            speed.send()
            speed.caught_up()
            assert writer.starts == 2
    finally:
        proxy.close()


def total(speed: SpeedPlace) -> int:
    """How many events the view `totals` counts, of the run that is served and since it."""
    from hand_off import publish_log

    view = next(view for view in speed.views if view.name == "totals")
    entry = publish_log.served(speed.folder)
    answer = speed.speed_views.reader.answer(entry.run, entry.cut, [StateRange(view.hash)])
    found = [states.unpack(view.algebras, state) for _, _, state in answer.states]
    if entry.run:
        found += speed._batch_states(entry.run, view).values()
    return sum(view.present(state)["events"] for state in found)


def test_the_horizon_of_copies_across_a_restart_a_cut_and_a_replay(
    place: Callable[..., SpeedPlace], redis: RedisServer
) -> None:
    speed = place(speed_dedup_horizon_s=HORIZON_S)
    first_ms = int(time.time() * 1000) - 1_400_000

    def send(name: str, after_s: int) -> None:
        """As if Kafka had got it so long after the first."""
        at = datetime(2026, 3, 1, tzinfo=UTC)
        fields = {"event_id": name, "event_time": at, "user_id": "u"}
        value = json.dumps({**fields, "event_time": at.isoformat()}).encode()
        with speed.producing() as produce:
            produce(Event(0, 0, name, at, fields), value, partition=1, timestamp=first_ms + after_s * 1000)

    send("a", 0)
    with speed.keeping():
        speed.wait_until_applied()
        send("b", 1)
        send("a", 30)
        speed.caught_up()
    with speed.keeping():  # a restart
        send("a", 60)
        speed.caught_up()
        speed.archive_and_run()  # a cut
        send("b", 90)
        speed.caught_up()
    redis.client.flushall()
    send("a", 120)
    with speed.keeping():  # a replay: these marks come from the master dataset
        speed.caught_up()
        assert total(speed) == 2
        send("c", 1_300)
        speed.caught_up()
        send("a", 1_305)  # marks go a slice of the horizon at a time, so somewhat later than they might
        speed.wait_until_applied()
        assert total(speed) == 4, "one that comes later than the horizon counts"
        manifest = speed.archive_and_run()
        assert total(speed) == 3, "until the next run"
        said = {view.name: view.compared for view in manifest.views}
        assert {name: (found["mismatched"], found["excused"]) for name, found in said.items() if found} == {
            "sales": (0, 0), "totals": (1, 1),
        }, said  # fmt: skip
        speed.caught_up()


def test_copies_are_dropped_again_after_that_was_switched_off(place: Callable[..., SpeedPlace]) -> None:
    speed = place(speed_dedup_horizon_s=0)
    with speed.keeping():
        speed.send(copies=0)
        speed.caught_up()
    speed.settings = speed.settings.model_copy(update={"speed_dedup_horizon_s": 3600.0})
    with speed.keeping() as writer:
        wait_until("the writer to say so", lambda: "master dataset" in writer.error, 30)
        assert speed.speed_views.reader.living_writer() != writer.token or not writer.token
        speed.archive()
        speed.send()  # repeats events that were counted without marks
        speed.caught_up()


def test_a_run_takes_over_what_kafka_no_longer_has(speed: SpeedPlace) -> None:
    with speed.keeping():
        speed.send()
        speed.caught_up()
    speed.send()
    speed.archive()
    delete_records(KafkaAdmin(speed.settings, speed.kafka), speed.source.topic, speed.kafka_end())
    with speed.keeping() as writer:
        wait_until("the writer to say so", lambda: "no longer holds" in writer.error, 30)
        assert f"`tidemark batch run --source {speed.name}`" in writer.error
        assert speed.check() < len(speed.events)
        manifest = speed.run()
        assert cut_text(manifest.cut) == cut_text(speed.kafka_end())
        speed.send()
        speed.caught_up()
        assert not writer.error


def test_speed_views_of_an_older_version_stay_while_kafka_cannot_rebuild_them(
    speed: SpeedPlace, redis: RedisServer
) -> None:
    with speed.keeping():
        speed.send()
        speed.caught_up()
    speed.archive()
    delete_records(KafkaAdmin(speed.settings, speed.kafka), speed.source.topic, speed.kafka_end())
    layout, reader = speed.speed_views.layout, speed.speed_views.reader
    (sales,) = (view for view in speed.views if view.name == "sales")
    before = reader.snapshot()
    gid = before.generations[-1].gid
    bucket = next(bucket for view, bucket in reader.all_buckets(gid) if view == sales.hash)
    redis.client.hset(layout.data(gid, sales.hash, bucket), pack_key(("x" * 2_000,)), b"state")
    redis.client.hdel(layout.meta, "short_keys")
    with speed.keeping() as writer:
        wait_until("the writer to say so", lambda: "keys that are too long now" in writer.error, 30)
        assert f"`tidemark batch run --source {speed.name}`" in writer.error
        now = reader.snapshot()
        assert (now.meta, now.generations) == (before.meta, before.generations), "nothing was dropped"
        speed.run()
        speed.send()
        speed.caught_up()
        assert not writer.error


def test_a_micro_batch_that_fails_is_tried_smaller(speed: SpeedPlace) -> None:
    tried: list[int] = []
    speed.send(2_500)

    def fail(name: str) -> None:
        if name == "speed.before_apply":
            tried.append(writer.stream.size)
            if tried[-1] > 600:
                raise MemoryError("too much at once")

    with speed.keeping(failpoint=fail) as writer:
        speed.caught_up()
        assert tried[0] > 600
        assert max(tried[1:]) <= tried[0] // 2 == writer.batch_size.allowed
        assert writer.starts == 2


def test_a_process_whose_jvm_is_killed_ends_with_an_exit_code(speed: SpeedPlace) -> None:
    speed.send()
    running = speed.process()
    try:
        speed.wait_until_applied(120)
        for each in psutil.Process(running.pid).children(recursive=True):
            if each.name() == "java":
                each.kill()
        assert running.wait(timeout=60) == 1
    finally:
        running.kill()
        running.wait(timeout=20)
    assert b"Spark ended under the speed layer" in speed.log.read_bytes()


def test_status_tells_how_far_the_speed_views_are(speed: SpeedPlace) -> None:
    def status(*arguments: str) -> tuple[int, str, str]:
        command = [TIDEMARK, "speed", "status", *arguments]
        environment = {**os.environ, **child_environment(speed.settings), "COLUMNS": "300"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr

    def row(*arguments: str) -> dict[str, Any]:
        code, out, err = status(*arguments, "-o", "json")
        assert code == 0, err
        (only,) = json.loads(out)
        return dict(only)

    Home(speed.settings.home).prepare()
    assert row() == {"source": speed.name, "state": "nothing in Redis yet", "against_batch": ""}
    with speed.keeping() as writer:
        speed.send()
        speed.caught_up()
        write_status(status_path(speed.settings, "speed"), status_of([writer]))
        found = row(speed.name)
        end = {str(partition): offset for partition, offset in speed.kafka_end().items()}
        counts, _ = speed.speed_views.reader.size()
        assert found | {"state": "keeps up", "applied": end, "run": 0, "generations": 1, "states": counts} == found
        assert found["marks"] == len({event.event_id for event in speed.events})
        assert found["last_micro_batch_s"] > 0
        code, out, _err = status()
        assert code == 0
        assert "keeps up" in out
    assert status("nosuch")[0] == 2
    wait_until("the writer to be taken for dead", lambda: speed.speed_views.reader.living_writer() is None, 30)
    assert row()["state"] == "no writer"
    speed.settings = speed.settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"})
    code, out, err = status()
    assert (code, out) == (1, "")
    assert "does not answer" in err


def test_partitions_that_are_added_while_it_runs_are_followed(speed: SpeedPlace) -> None:
    with speed.keeping() as writer:
        speed.send()
        speed.caught_up()
        alter_topic(KafkaAdmin(speed.settings, speed.kafka), speed.source.topic, 5, {})
        speed.send(partitions=5)
        assert {event.partition for event in speed.events} == {0, 1, 2, 3, 4}
        speed.caught_up()
        assert writer.starts == 1


def test_a_topic_that_was_made_again_is_noticed_without_a_master_dataset(speed: SpeedPlace) -> None:
    """Its offsets have passed those that are applied, so that they alone would not tell."""
    with speed.keeping():
        speed.send()
        speed.caught_up()
    admin = KafkaAdmin(speed.settings, speed.kafka)
    delete_topic(admin, speed.source.topic)
    wait_until("the topic to be gone", lambda: speed.source.topic not in existing_topics(admin))
    wait_until("the topic to be made again", lambda: apply_topics(admin, plan_topics([speed.source])))
    speed.send(200)
    before = speed.speed_views.reader.snapshot().meta
    with speed.keeping() as writer:
        wait_until("the writer to say so", lambda: "was deleted and made again" in writer.error, 30)
    assert speed.speed_views.reader.snapshot().meta == before


def test_an_open_transaction_does_not_hold_up_a_start(speed: SpeedPlace, redis: RedisServer) -> None:
    """After Redis was lost, a start asks when the next record came. That of an open transaction is not there yet."""
    with speed.keeping():
        speed.send()
        speed.caught_up()
        speed.archive_and_run()
    redis.client.flushall()
    producer = Producer({**speed.config, "transactional.id": speed.name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(speed.source.topic, b"{}", partition=1)
    assert producer.flush(30) == 0
    with speed.keeping():
        speed.caught_up()
        producer.abort_transaction(30)
        speed.send()
        speed.caught_up()
