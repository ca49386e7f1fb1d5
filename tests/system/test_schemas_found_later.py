"""A schema that the registry did not know is asked for again, on a real Kafka, Redis, Spark and collector.

Layers that are ahead and behind judge each record alike, nothing is restarted, and dead letters can be sent again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from infra import failpoints
from infra.settings import child_environment
from master_dataset.dead_letters.letters import newest_first, replay
from master_dataset.writer_schemas import correction
from master_dataset.writer_schemas.noted import NotedSchemas
from tests.conftest import Stack, interpreted, wait_until
from tests.system.test_evolution import archiving
from tests.system.test_formats import FIRST, AvroPlace
from views.formats.framing import frame_of_id
from views.in_memory import Event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.system.speed_source import RedisServer

STEP = 1_000
"""Between the highest id that is registered and those of a test."""


class LatePlace(AvroPlace):
    """Its records name a schema of the collector's registry that is registered when the test says so."""

    def __init__(self, stack: Stack, folder: Path, redis: RedisServer, spark: SparkSession) -> None:
        super().__init__(stack, folder, redis, spark, archive_max_interval_s=1)
        self.stack, self.registry = stack, f"{stack.collector}/schema-registry"
        self.register("first", FIRST)  # a registry without any schema is taken for the wrong one
        self.id = max(each["id"] for each in self.ask("GET", "/schemas")) + STEP
        self.ids[self.id] = FIRST

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        reply = httpx.request(method, self.registry + path, json=body, auth=("admin", self.stack.secret), timeout=30)
        assert reply.is_success, reply.text
        return reply.json()

    def register(self, subject: str, schema: Any, **more: Any) -> None:
        path = f"/subjects/{self.name}-{subject}"
        if more:
            self.ask("PUT", path.replace("/subjects", "/mode"), {"mode": "IMPORT"})
        self.ask("POST", f"{path}/versions", {"schema": json.dumps(schema), **more})

    def register_late(self) -> None:
        self.register("late", {**FIRST, "doc": self.name}, id=self.id, version=1)

    def send_too_early(self, count: int) -> None:
        """Valid events of the schema that nobody knows yet: whoever judges them finds them invalid."""
        counted, self.events = self.events, []
        self.send(count, copies=0)
        self.early: list[Event] = self.events
        self.events = counted

    def ask_again(self) -> dict[str, Any]:
        ran = self._ask_again({})
        assert ran.returncode == 0, ran.stderr
        found: dict[str, Any] = json.loads(ran.stdout)
        return found

    def ask_again_killed_at(self, point: str, armed: Path) -> None:
        """SIGKILL ends the command at a failpoint."""
        armed.mkdir()
        (armed / point).touch()
        ran = self._ask_again({failpoints.VARIABLE: str(armed)})
        assert ran.returncode == -signal.SIGKILL, ran.stderr
        assert list(armed.iterdir()) == []

    def _ask_again(self, more: dict[str, str]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tidemark", "registry", "ask-again", self.name, str(self.id)]
        environment = {**os.environ, **child_environment(self.settings), **more}
        return subprocess.run(
            [*command, "--output", "json"], env=environment, capture_output=True, text=True, check=False, timeout=60
        )

    def unknown(self) -> str:
        return f"schema id {self.id} is unknown to the registry"


@pytest.fixture
def place(stack: Stack, tmp_path: Path, redis: RedisServer, spark: SparkSession) -> Iterator[LatePlace]:
    with interpreted(spark) as session:
        url = f"{stack.collector}/schema-registry/subjects"
        wait_until("the registry", lambda: httpx.get(url, auth=("admin", stack.secret)).is_success)
        yield LatePlace(stack, tmp_path, redis, session)


def test_layers_that_run_read_records_with_a_schema_from_the_moment_it_is_asked_for_again(place: LatePlace) -> None:
    with place.keeping() as writer, archiving(place):
        place.send_too_early(20)
        place.caught_up()
        place.wait_until_archived()
        assert place.reasons() == [place.unknown()] * 20
        with pytest.raises(correction.NothingToCorrect, match="still does not know"):
            correction.ask_again(place.settings, place.source, str(place.id))
        place.register_late()
        sent = place.early
        place.send_too_early(10)
        place.caught_up()  # what was noted holds until somebody asks again
        place.wait_until_archived()
        assert place.reasons() == [place.unknown()] * 30
        found = place.ask_again()
        assert found["since"] == {str(partition): end for partition, end in place.kafka_end().items()}
        place.send(40)
        place.caught_up()
        place.wait_until_archived()
        place.run()
        assert place.check() == len(place.events)
        letters = list(newest_first(place.config, place.source))
        assert {letter.reason for letter in letters} == {place.unknown()}
        again = [letter for letter in letters if any(_is_of(letter, event) for event in sent)]
        assert replay(place.config, place.source, again) == 20
        place.wait_until_applied()
        place.wait_until_archived()
        run = place.run()
        assert (run.events - run.invalid, run.invalid) == (len(place.events) + 20, 30)
        assert writer.error == ""
    assert place.reasons() == [place.unknown()] * 30, "as they were judged when they came"
    with pytest.raises(correction.NothingToCorrect, match="known already"):
        correction.ask_again(place.settings, place.source, str(place.id))


def _is_of(letter: Any, event: Event) -> bool:
    return (letter.partition, letter.offset) == (event.partition, event.offset)


def test_a_layer_that_is_behind_judges_records_below_the_cut_like_the_one_that_was_ahead(place: LatePlace) -> None:
    place.send_too_early(20)
    with place.keeping() as writer:
        place.caught_up()
        place.register_late()
        place.ask_again()
        place.send(30)
        place.caught_up()
        assert writer.error == ""
    place.archive()  # it has judged nothing so far
    assert place.reasons() == [place.unknown()] * 20
    run = place.run()
    assert (run.events - run.invalid, run.invalid) == (len(place.events), 20)
    assert place.check() == len(place.events)
    place.redis.client.flushall()
    with place.keeping():  # and the other way round: the speed layer begins at nothing, and reads from the run's cut
        place.send(10)
        place.caught_up()


def test_a_speed_layer_that_begins_after_the_archiver_judges_records_below_the_cut_like_it(place: LatePlace) -> None:
    place.send_too_early(20)
    place.archive()
    place.register_late()
    place.ask_again()
    place.send(30)
    with place.keeping() as writer:
        place.caught_up()
        assert writer.error == ""
    place.archive_and_run()
    assert place.check() == len(place.events)


def test_a_question_that_is_killed_lets_records_wait_until_it_is_asked_again(place: LatePlace, tmp_path: Path) -> None:
    place.send_too_early(5)
    with place.keeping() as writer:
        place.caught_up()
        place.register_late()
        place.ask_again_killed_at("writer_schemas.after_begin", tmp_path / "failpoints")
        place.send(10)
        wait_until("the speed layer to say what it waits for", lambda: "ask-again" in writer.error)
        assert str(place.id) in writer.error
        place.ask_again()  # its cut is above the records that waited
        wait_until("the speed layer to go on", lambda: writer.error == "", 60)
        place.wait_until_applied()
    place.archive()
    assert place.reasons() == [place.unknown()] * 15, "alike in both layers"
    place.events.clear()
    run = place.run()
    assert (run.events - run.invalid, run.invalid) == (0, 15)


def test_the_list_of_schemas_says_from_which_cut_on_one_is_known(place: LatePlace) -> None:
    place.send_too_early(3)
    place.archive()
    place.register_late()
    since = place.ask_again()["since"]
    noted = NotedSchemas(place.settings, place.source)
    assert dict(noted.known()[frame_of_id(place.id)].since) == {int(each): end for each, end in since.items()}
    (listed,) = noted.summary(10)
    assert listed == {"schema": str(place.id), "type": "AVRO", "known": True, "since": since}
