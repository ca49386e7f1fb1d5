"""A backlog of history on real Kafka, Redis and Spark: a run overtakes the speed layer, and nothing counts twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from batch_layer.scheduler import Scheduler
from hand_off import publish_log
from hand_off.speed_views import cut_text
from infra.home import Home
from tests.conftest import Killed, Stack, dying_at, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hand_off.speed_views import Meta
    from speed_layer.writer import SourceWriter
    from tests.system.speed_source import RedisServer, SpeedPlace

BEHIND = 40


@pytest.fixture
def place(stack: Stack, tmp_path: Path, redis: RedisServer, spark: SparkSession) -> SpeedPlace:
    """A source of which so few events behind are a backlog."""
    from tests.system.speed_source import SpeedPlace

    found = SpeedPlace(stack, tmp_path, redis, spark, overtake_behind_events=BEHIND, overtake_behind_s=0)
    Home(found.settings.home).prepare()  # for the run, which is a process of its own
    return found


class Held:
    """A speed layer that can be held up before it computes a micro-batch."""

    def __init__(self) -> None:
        self._goes_on = threading.Event()
        self._goes_on.set()

    def __call__(self, name: str) -> None:
        if name == "speed.before_read":
            self._goes_on.wait(300)

    @contextmanager
    def up(self) -> Iterator[None]:
        self._goes_on.clear()
        try:
            yield
        finally:
            self._goes_on.set()


@contextmanager
def behind(place: SpeedPlace) -> Iterator[SourceWriter]:
    """The speed layer has counted some events; then it is held up, and a backlog of others is archived."""
    held = Held()
    with place.keeping(failpoint=held) as writer:
        place.send(40)
        place.caught_up()
        with held.up():
            place.send(120)
            place.archive()
            yield writer
        place.send(60)  # duplicates of events below the cut among them
        place.caught_up()


def meta(place: SpeedPlace) -> Meta:
    found = place.speed_views.reader.snapshot().meta
    assert found is not None
    return found


def test_the_scheduler_overtakes_a_speed_layer_that_is_behind(place: SpeedPlace) -> None:
    ours = Scheduler(place.settings, lambda: [place.name])
    with behind(place) as writer:
        starts, end = writer.starts, place.kafka_end()
        wait_until("the scheduler to find the backlog", ours.watch, 60)
        assert place.speed_views.reader.is_overtaken(), "the speed layer is asked to wait"
        ours.relieve()
        newest = publish_log.last(place.folder)
        assert (newest.run, cut_text(newest.cut)) == (1, cut_text(end))
        assert meta(place).published == newest.run
        assert cut_text(meta(place).applied) == cut_text(end), "the speed layer jumped"
        assert not place.speed_views.reader.is_overtaken(), "and waits no longer"
        assert place.check() == len(place.events)
        assert not ours.watch(), "no run follows it"
    assert writer.starts > starts
    assert writer.error == ""
    assert meta(place).published == 1


def test_an_overtake_whose_run_was_killed_after_its_append_is_completed_by_the_writer(place: SpeedPlace) -> None:
    with behind(place) as writer:
        with pytest.raises(Killed):
            place.run(overtake=True, failpoint=dying_at("run.after_publish"))
        run = publish_log.last(place.folder).run
        wait_until("the writer to complete it", lambda: meta(place).published == run, 60)
        assert cut_text(meta(place).applied) == cut_text(place.kafka_end())
        assert place.check() == len(place.events)
    assert writer.error == ""
