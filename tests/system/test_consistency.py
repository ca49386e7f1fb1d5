"""Speed views are compared with each batch run, on real Kafka, Redis, Spark: a wrong one is quarantined."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import generate_latest

from infra.settings import child_environment
from serving_layer.engine import QueryEngine
from serving_layer.metrics import ServingMetrics
from serving_layer.query.limits import QueryLimits
from serving_layer.query.parse import parse_query
from serving_layer.query.result import Result
from serving_layer.rest.views import compared_views, described
from tests.conftest import Stack, wait_until
from views import states
from views.declarations import declared_by
from views.in_memory import answers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hand_off.manifests import Manifest
    from tests.system.speed_source import RedisServer, SpeedPlace

TIDEMARK = str(Path(sys.executable).with_name("tidemark"))


class Compared:
    """A source whose speed layer runs, and what answers about it."""

    def __init__(self, speed: SpeedPlace) -> None:
        self.speed = speed
        self.declarations = declared_by(speed.settings)
        self.engine = QueryEngine(speed.settings, self.declarations)

    def send(self, count: int = 40) -> None:
        self.speed.send(count)
        self.speed.wait_until_applied(deadline_s=180)

    def run(self) -> Manifest:
        return self.speed.archive_and_run()

    def execute(self, view: str) -> Result:
        """All of a view, in one row."""
        given = [("from", "1990-01-01"), ("to", "2090-01-01"), ("grain", "all")]
        return self.engine.execute(
            parse_query(self.engine.served_view(view), given, now=time.time(), limits=QueryLimits())
        )

    def check(self, view: str) -> Result:
        """The answer is the oracle's at the cut that it reports, degraded or not."""
        answer = self.execute(view)
        below = [event for event in self.speed.events if event.offset < answer.meta.cut.get(event.partition, 0)]
        name = {"sales": "orders", "totals": "events"}[view]
        expected = sum(each[name] for each in answers(self.declarations.views[view], below).values())
        assert sum(row.answers[name] for row in answer.rows) == expected
        return answer

    def corrupt(self, view: str = "sales") -> None:
        """One state of the newest generation counts an event more than there was."""
        found, views = self.declarations.views[view], self.speed.speed_views
        gid = views.reader.snapshot().generations[-1].gid
        bucket = min(views.reader.bucket_sizes(gid, found.hash))
        key, packed = min(views.reader.states_of(gid, found.hash, bucket))
        state = states.unpack(found.algebras, packed)
        name = {"sales": "orders", "totals": "events"}[view]
        wrong = states.pack(found.algebras, {**state, name: state[name] + 1})
        views.client.hset(views.layout.data(gid, found.hash, bucket), key, wrong)

    def metric(self, name: str, view: str) -> float:
        """As Prometheus reads it."""
        found = ServingMetrics(dict, views=lambda: compared_views(self.engine, self.declarations)).registry()
        start = f'tidemark_serving_{name}{{source="{self.speed.name}",view="{view}"}} '
        (line,) = [line for line in generate_latest(found).decode().splitlines() if line.startswith(start)]
        return float(line.removeprefix(start))

    def command(self, *arguments: str, code: int = 0) -> str:
        """What a command prints."""
        done = subprocess.run(
            [TIDEMARK, *arguments], env=child_environment(self.speed.settings), capture_output=True, text=True,
            check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.command(*arguments, "--output", "json"))


@contextmanager
def compared(speed: SpeedPlace) -> Iterator[Compared]:
    made = Compared(speed)
    with speed.keeping():
        yield made
    made.engine.close()


@pytest.fixture
def place(stack: Stack, tmp_path: Path, redis: RedisServer, spark: SparkSession) -> Iterator[Compared]:
    from tests.system.speed_source import SpeedPlace

    with compared(SpeedPlace(stack, tmp_path, redis, spark)) as made:
        yield made


def found_in(manifest: Manifest, view: str) -> tuple[int, int]:
    """How many groups were found to differ, and how many of these are excused."""
    said = manifest.view(view).compared
    assert said is not None
    assert said["compared"] > 0, said
    return said["mismatched"], said["excused"]


def test_corrupted_state_quarantines_its_view_until_it_is_found_right_or_rebuilt(place: Compared) -> None:
    speed = place.speed
    place.send()
    first = place.run()
    assert [found_in(first, view) for view in ("sales", "totals")] == [(0, 0), (0, 0)]
    place.send()
    assert not place.check("sales").meta.degraded
    place.speed.archive()
    for more in ((), ("--from-scratch",)):
        rows = place.json("verify", *more)
        assert [(row["view"], row["result"]) for row in rows] == [("sales", "equal"), ("totals", "equal")], rows
        assert all(row["compared"] > 0 for row in rows)

    # A state is corrupted: the run finds it, says it everywhere, and readers get the batch view alone.
    place.corrupt()
    second = place.run()
    assert found_in(second, "sales") == (1, 0)
    assert found_in(second, "totals") == (0, 0)
    place.send()
    answer = place.check("sales")
    assert answer.meta.degraded
    assert answer.meta.cut == second.cut
    assert "quarantined" in (answer.meta.why or "")
    assert "orders is" in (answer.meta.why or "")
    assert not place.check("totals").meta.degraded, "its speed view was right"
    found = described(place.engine, place.declarations.views["sales"])["consistency"]
    assert (found["mismatched"], found["run"]) == (1, 2)
    assert "quarantined" in found["set_aside"]
    assert place.metric("unexplained_groups", "sales") == place.metric("set_aside", "sales") == 1
    assert place.metric("unexplained_groups", "totals") == place.metric("set_aside", "totals") == 0
    assert "QUARANTINED" in place.json("speed", "status", speed.name)[0]["against_batch"]
    assert [row["against speed"] for row in place.json("batch", "list")] == ["1 differ", "equal"]
    assert place.json("batch", "show", "2")["views"][0]["compared"]["mismatched"] == 1

    # The generation since then is right: the next run finds that, and the view is back.
    third = place.run()
    assert found_in(third, "sales") == (0, 0)
    place.send()
    assert not place.check("sales").meta.degraded
    assert place.metric("set_aside", "sales") == 0

    # Once more; this time it is found on demand, by whoever asks for it, and the speed views are rebuilt.
    place.corrupt()
    place.speed.archive()
    rows = json.loads(place.command("verify", "sales", "--from-scratch", "-o", "json", code=1))
    assert rows[0]["result"] == "DIFFERS"
    assert place.metric("set_aside", "sales") == 0, "that one only looks"
    rows = json.loads(place.command("verify", "-o", "json", code=1))
    assert [(row["result"], row["differ"]) for row in rows] == [("DIFFERS", 1), ("equal", 0)]
    assert place.check("sales").meta.degraded
    rows = place.json("verify", "--from-scratch")
    assert [row["result"] for row in rows] == ["equal", "equal"], "what is left, at its own cut, is right"
    assert found_in(place.run(), "sales") == (1, 0)
    assert place.check("sales").meta.degraded
    place.json("speed", "rebuild", speed.name)
    wait_until("the view to be back", lambda: not place.execute("sales").meta.degraded, 60)
    place.send()
    assert place.check("sales").meta.cut == speed.kafka_end()
