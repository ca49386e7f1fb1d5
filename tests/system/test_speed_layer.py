"""The speed layer on real Kafka, Redis and Spark: after each fault the merged answer is the oracle's again."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from hand_off import publish_log
from hand_off.lag import Lag
from hand_off.speed_views import StateRange, cut_text
from serving_layer.readers.speed import why_behind
from tests.conftest import Killed, Stack, dying_at, start_stack, stop_stack, wait_until
from tests.tiers import times

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from speed_layer.writer import SourceWriter
    from tests.system.speed_source import RedisServer, SpeedPlace

KILLED = -signal.SIGKILL
AWAY = times(2, 12)
"""So many questions of five seconds Kafka leaves unanswered."""


def test_events_are_counted_at_once_and_across_runs(speed: SpeedPlace) -> None:
    with speed.keeping():
        speed.send(80, poison=6)
        speed.caught_up()
        first = speed.archive_and_run()
        assert cut_text(first.cut) == cut_text(speed.kafka_end())
        speed.send(50)
        speed.caught_up()
        second = speed.archive_and_run()
        assert second.base_run == first.run
        speed.caught_up()
        speed.send(50, poison=3)
        speed.caught_up()
    kept = speed.speed_views.reader.snapshot()
    assert kept.meta is not None
    assert kept.meta.published == second.run


def test_readers_are_told_how_far_it_is(speed: SpeedPlace) -> None:
    def lag() -> Lag | None:
        return speed.speed_views.reader.answer(0, {}, []).lag

    def keeps_up() -> bool:
        told = lag()
        return told is not None and told.events == 0 and told.seconds is not None and told.seconds < 3

    with speed.keeping():
        assert lag() is None
        speed.send()
        speed.caught_up()
        wait_until("the writer to say that it has all", keeps_up, deadline_s=20)
    speed.send()
    wait_until("the news to get old", lambda: ((lag() or Lag(0, 0.0)).seconds or 0.0) > 3, deadline_s=20)
    with speed.keeping():
        wait_until("the next writer to catch up", keeps_up, deadline_s=60)
        speed.caught_up()


def test_streams_that_ended_leave_nothing_in_memory(speed: SpeedPlace) -> None:
    ended = []
    for _ in range(2):
        with speed.keeping() as writer:
            speed.send(20)
            speed.wait_until_applied()
            ended.append(weakref.ref(writer.stream))
        del writer

    def are_gone() -> bool:
        gc.collect()
        speed.spark._jvm.System.gc()
        return all(each() is None for each in ended)

    wait_until("Python and the JVM to release the streams", are_gone)


def test_old_generations_are_retired_and_swept(speed: SpeedPlace) -> None:
    with speed.keeping():
        speed.send()
        speed.caught_up()
        speed.archive_and_run()
        wait_until("one generation", lambda: len(speed.speed_views.reader.snapshot().generations) == 1, 30)
        wait_until("all swept", lambda: not speed.speed_views.runs.unswept(), 30)
        assert speed.speed_views.reader.size()[0] == 0
        speed.send()
        speed.caught_up()


def test_a_flushed_redis_is_rebuilt_from_the_last_run(speed: SpeedPlace, redis: RedisServer) -> None:
    with speed.keeping():
        speed.send()
        speed.caught_up()
        speed.archive_and_run()
        speed.send()  # repeats events that only the run has counted: the marks must come from the master dataset
        speed.caught_up()
        redis.client.flushall()
        speed.send()
        speed.caught_up()


def test_a_redis_set_back_goes_on_from_there(speed: SpeedPlace, redis: RedisServer) -> None:
    with speed.keeping():
        speed.send()
        speed.caught_up()
        saved = redis.saved()
        speed.send()
        speed.caught_up()
        speed.archive_and_run()  # in the log, and soon forgotten by Redis
        speed.send()
        speed.caught_up()
        redis.set_back(saved)
        speed.send()
        speed.wait_until_applied()
        wait_until("right answers of the run that Redis names", lambda: _answers(speed), 30)
        speed.archive_and_run()
        speed.caught_up()


def _answers(speed: SpeedPlace) -> bool:
    """Whether a reader of the run that Redis names is answered, and rightly."""
    meta = speed.speed_views.reader.snapshot().meta
    if meta is None:
        return False
    return speed.check(publish_log.find(speed.folder, meta.published)) == len(speed.events)


def test_a_killed_redis_and_one_that_comes_back_empty(speed: SpeedPlace, redis: RedisServer) -> None:
    with speed.keeping() as keeper:
        speed.send()
        speed.caught_up()
        redis.kill()
        speed.send()
        wait_until("the keeper to notice", lambda: keeper.error, 30)
        redis.start()
        speed.caught_up()
        assert not keeper.error
        redis.kill()
        for path in redis.folder.glob("appendonly*"):
            path.unlink() if path.is_file() else [each.unlink() for each in path.iterdir()]
        redis.start()
        assert redis.client.dbsize() == 0
        speed.send()
        speed.caught_up()


def test_a_full_redis_takes_nothing_until_it_has_room(speed: SpeedPlace, redis: RedisServer) -> None:
    with speed.keeping() as keeper:
        speed.send()
        speed.caught_up()
        redis.client.config_set("maxmemory", "100kb")
        try:
            speed.send()
            wait_until("the keeper to say so", lambda: "redis_max_memory_mb" in keeper.error, 30)
            assert 0 < speed.check() < len(speed.events)
            starts = keeper.starts
            wait_until("two more attempts", lambda: said_each_time(keeper, "redis_max_memory_mb", starts + 2), 60)
            answer = speed.speed_views.reader.answer(0, {}, ())
            assert "Redis is full" in answer.problem
            assert answer.lag is not None
            assert answer.lag.events == len(speed.events) - speed.check()
            assert answer.lag.seconds is not None
            assert "cannot go on: Redis is full" in (why_behind(answer) or "")
        finally:
            redis.client.config_set("maxmemory", "0")
        speed.caught_up()
        wait_until("answers to say that it is over", lambda: not speed.speed_views.reader.answer(0, {}, ()).problem, 30)
        assert keeper.error == ""


def said_each_time(keeper: SourceWriter, words: str, starts: int) -> bool:
    """Whether it started so often. It says its problem until that is over, while it tries again too."""
    assert words in keeper.error
    assert words in keeper.status()["refused"]
    return keeper.starts >= starts


def test_a_run_while_nobody_writes_takes_over(speed: SpeedPlace) -> None:
    with speed.keeping():
        speed.send()
        speed.caught_up()
    speed.send()
    wait_until("the writer to be taken for dead", lambda: speed.speed_views.reader.living_writer() is None, 30)
    assert speed.check() < len(speed.events)
    manifest = speed.archive_and_run()
    assert cut_text(manifest.cut) == cut_text(speed.kafka_end())
    assert speed.check() == len(speed.events)
    with speed.keeping():
        speed.send()
        speed.caught_up()


def test_a_view_that_changed_joins_at_the_next_cut_while_the_old_one_serves(speed: SpeedPlace) -> None:
    from tests.system.speed_source import DECLARED

    with speed.keeping():
        speed.send()
        speed.caught_up()
        old = {view.name: view for view in speed.views}
    changed = DECLARED.replace('"orders": Count(),', '"orders": Count(), "smallest": Max("cents"),')
    more = '\nevents = View("events", source=source, answers={{"events": Count()}})\n'
    speed.declare(changed + more)
    with speed.keeping():  # a new process, with new declarations
        speed.send()
        speed.wait_until_applied()
        entry = publish_log.served(speed.folder)
        assert speed.speed_views.reader.answer(entry.run, entry.cut, [StateRange(old["sales"].hash)]).states
        assert not speed.speed_views.reader.answer(entry.run, entry.cut, [StateRange(speed.views[0].hash)]).states
        speed.archive_and_run()
        assert {view.name for view in speed.views} == {"sales", "totals", "events"}
        speed.send()
        speed.caught_up()


def test_a_run_killed_after_opening_its_cut_and_one_after_it(speed: SpeedPlace) -> None:
    with speed.keeping():
        for point in ("run.after_open", "run.before_publish", "run.after_publish"):
            speed.send()
            speed.wait_until_applied()
            speed.archive()
            with pytest.raises(Killed):
                speed.run(failpoint=dying_at(point))
            speed.send()
            speed.wait_until_applied()
            wait_until("a right answer", lambda: _is_right(speed), 30)
        speed.archive_and_run()
        speed.caught_up()


def _is_right(speed: SpeedPlace) -> bool:
    entry = publish_log.served(speed.folder)
    meta = speed.speed_views.reader.snapshot().meta
    return meta is not None and meta.published == entry.run and speed.check() == len(speed.events)


def test_two_runs_at_once_never_both_publish_out_of_order(speed: SpeedPlace) -> None:
    """The lease is taken away, as on two machines: the publish log alone decides."""
    from infra import locks

    with speed.keeping():
        speed.send()
        speed.caught_up()
        speed.archive()
        waiting, go_on = threading.Event(), threading.Event()

        def wait(name: str) -> None:
            if name == "run.before_publish":
                waiting.set()
                go_on.wait(600)

        said: list[Any] = []

        def slow() -> None:
            try:
                said.append(speed.run(failpoint=wait))
            except Exception as error:
                said.append(error)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(locks.fcntl, "flock", lambda *_: None)
            thread = threading.Thread(target=slow)
            thread.start()
            assert waiting.wait(120)
            patch.undo()
        speed.folder.lease.unlink()
        speed.send()
        speed.wait_until_applied()
        newer = speed.archive_and_run()
        go_on.set()
        thread.join(300)
        assert type(said[0]).__name__ == "RunRefused"
        assert publish_log.last(speed.folder).run == newer.run
        speed.caught_up()


def test_kill_9_before_and_after_the_atomic_step(speed: SpeedPlace) -> None:
    speed.send()
    for point in ("speed.before_apply", "speed.after_apply"):
        victim = speed.process(point, "0")
        assert victim.wait(timeout=300) == KILLED
        speed.send(20)
        meta = speed.speed_views.reader.snapshot().meta
        assert meta is not None
        assert bool(meta.applied) == (point == "speed.after_apply")
        if meta.applied:
            speed.check()
    with speed.keeping():
        speed.caught_up()


def test_a_paused_writer_wakes_up_after_its_successor_started(speed: SpeedPlace) -> None:
    speed.send()
    paused = speed.process()
    try:
        speed.wait_until_applied(120)
        os.kill(paused.pid, signal.SIGSTOP)
        with speed.keeping():
            speed.send()
            speed.caught_up()
            os.kill(paused.pid, signal.SIGCONT)
            assert paused.wait(timeout=60) == 75
            speed.send()
            speed.caught_up()
    finally:
        paused.kill()
        paused.wait(timeout=20)
    assert b"another writer" in speed.log.read_bytes()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Stack]:
    """A broker that nobody else needs."""
    running = start_stack(tmp_path / "broker", collector_enabled=False)
    yield running
    stop_stack(running)


def test_kafka_away_for_a_while(own_broker: Stack, tmp_path: Path, redis: RedisServer, spark: SparkSession) -> None:
    from tests.system.speed_source import SpeedPlace

    speed = SpeedPlace(own_broker, tmp_path, redis, spark)
    with speed.keeping():
        speed.send()
        speed.caught_up()
        broker = psutil.Process(own_broker.service("kafka")["pid"])
        frozen = [broker, *broker.children(recursive=True)]
        for each in frozen:
            each.suspend()
        try:
            for _ in range(AWAY):
                with pytest.raises(KafkaException):
                    AdminClient(speed.config).list_topics(timeout=5)
        finally:
            for each in reversed(frozen):
                each.resume()
        speed.send()
        speed.caught_up()
