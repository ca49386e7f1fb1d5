"""What batch runs and the speed views of a source need of each other, on a real Redis."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.generations import clean_up, open_cut, publish
from hand_off.log_follower import LogFollower
from hand_off.publish_log import Entry
from hand_off.speed_views import SpeedViews
from infra.settings import Settings, child_environment, load_settings
from infra.store import PosixStore
from tests.system.redis_server import redis_server
from tests.unit.test_batch_commands import make_runs

TIDEMARK = str(Path(sys.executable).with_name("tidemark"))
CATALOG = {"v": "a" * 64}


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with redis_server(tmp_path_factory.mktemp("redis")) as client:
        yield client


@pytest.fixture
def speed_views(redis: Redis) -> SpeedViews:
    """At run 0, with a writer that lives."""
    redis.flushdb()
    found = SpeedViews(redis, "web")
    writer, _ = found.start_writer()
    writer.init(0, {}, CATALOG.values())
    writer.heartbeat(60)
    return found


def runs(speed_views: SpeedViews) -> list[int]:
    return [generation.run for generation in speed_views.reader.snapshot().generations]


def test_generations_of_runs_that_failed_go_when_a_later_run_is_published(
    speed_views: SpeedViews, tmp_path: Path
) -> None:
    folder = BatchFolder(tmp_path / "web")
    publish_log.begin(folder, CATALOG, 0.0)
    for run in (1, 2, 3):
        open_cut(speed_views, run, CATALOG.values())
        clean_up(speed_views, folder, grace_s=0)
    assert runs(speed_views) == [0, 1, 2, 3], "readers of run 0 need them all"
    opening = open_cut(speed_views, 4, CATALOG.values())
    entry = publish_log.append(folder, Entry(4, opening.cut, CATALOG, 1.0))
    publish(speed_views, folder, opening, entry)
    open_cut(speed_views, 5, CATALOG.values())  # the next run is at work
    clean_up(speed_views, folder, grace_s=0)
    clean_up(speed_views, folder, grace_s=0)
    assert runs(speed_views) == [4, 5]
    assert speed_views.runs.unswept() == []


def prune(settings: Settings) -> tuple[int, str]:
    done = subprocess.run(
        [TIDEMARK, "batch", "prune", "--keep", "1"],
        env={**os.environ, **child_environment(settings)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


def test_prune_keeps_runs_that_readers_of_the_speed_views_may_ask_for(
    speed_views: SpeedViews, redis: Redis, tmp_path: Path
) -> None:
    port = redis.connection_pool.connection_kwargs["port"]
    settings = load_settings(home=tmp_path / "home", redis_url=f"redis://127.0.0.1:{port}/0")
    folder = make_runs(BatchFolder.of(settings, "web"))
    speed_views.runs.open(2, CATALOG.values())
    away = settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"})
    code, said = prune(away)
    assert code == 1
    assert "nothing was deleted" in said
    assert [folder.manifest(run).is_file() for run in (1, 2, 3)] == [True, True, True]
    assert prune(settings)[0] == 0
    assert [folder.manifest(run).is_file() for run in (1, 2, 3)] == [False, True, True]
    assert prune(away.model_copy(update={"speed_enabled": False}))[0] == 0
    assert [folder.manifest(run).is_file() for run in (1, 2, 3)] == [False, False, True]


def test_cleaning_up_reads_no_entry_of_a_log_that_did_not_change(
    speed_views: SpeedViews, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The speed layer does it every few seconds, over a log that grows for years."""
    folder = BatchFolder(tmp_path / "web")
    for run in range(1, 30):
        publish_log.append(folder, Entry(run, {}, CATALOG, float(run)))
    open_cut(speed_views, 29, CATALOG.values())
    opened: list[str] = []
    real = PosixStore.get
    monkeypatch.setattr(PosixStore, "get", lambda self, name: opened.append(name) or real(self, name))  # type: ignore[func-returns-value]
    entries = LogFollower(folder)
    clean_up(speed_views, folder, grace_s=0, entries=entries)
    assert (opened, runs(speed_views)) == (["publish/00000029.json", "speed.floor"], [29]), (
        "published late, and the one before retired"
    )
    opened.clear()
    clean_up(speed_views, folder, grace_s=0, entries=entries)
    assert opened == []
