"""Each source of the archiver for itself: a refused one is named and tried again, and stops no other."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.home import Home
from infra.process_status import ProcessStatus, check_heartbeat, refusals, write_status
from infra.settings import Settings, load_settings
from master_dataset.archiver import source_archiver
from master_dataset.archiver.source_archiver import RETRY_S, NothingArchived, SourceArchiver, check_any_is_archived
from master_dataset.archiver.status import status_file, status_text
from master_dataset.errors import MasterDatasetError
from views.source import Source

FIELDS = "event_id string, event_time timestamp"


class Refused(MasterDatasetError):
    """What a test refuses a source with."""

    exit_code = 75


class Query:
    """A query until something ends it."""

    name = "archive-shop"

    def __init__(self) -> None:
        self.isActive = True
        self.failure: Exception | None = None

    def exception(self) -> Exception | None:
        return self.failure

    def stop(self) -> None:
        self.isActive = False

    def die(self, failure: Exception | None = None) -> None:
        self.isActive, self.failure = False, failure


class World:
    """Kafka and Spark as a follower sees them: which sources are refused, and who holds which table."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.refused: dict[str, Exception] = {}
        self.opened: list[Source] = []
        self.held: list[str] = []
        monkeypatch.setattr(source_archiver, "open_archive", self._open)
        monkeypatch.setattr(source_archiver, "apply_topics", lambda *_: [])
        monkeypatch.setattr(source_archiver, "KafkaAdmin", lambda *_: nullcontext())
        monkeypatch.setattr(source_archiver, "time", SimpleNamespace(monotonic=lambda: self.now))

    def _open(self, _settings: Any, _bootstrap: str, source: Source, _spark: Any, locks: Any) -> Any:
        self.opened.append(source)
        self.held.append(source.name)
        locks.callback(self.held.remove, source.name)
        if source.name in self.refused:
            raise self.refused[source.name]
        return SimpleNamespace(cut={0: 5}, rows=5, commits=1, invalid=0, last_commit_at=0.0, start=lambda _: Query())

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "views").mkdir()
    declare(tmp_path / "views", partitions=3)
    made = load_settings(home=tmp_path / "home", views_dir=tmp_path / "views", with_examples=False)
    Home(made.home).prepare()
    return made


@pytest.fixture
def follow(settings: Settings) -> Callable[[str], SourceArchiver]:
    return lambda name: SourceArchiver(settings, "127.0.0.1:1", None, Source(name, fields=FIELDS))  # type: ignore[arg-type]


def declare(folder: Path, partitions: int) -> None:
    text = f"from views.source import Source\nshop = Source('shop', fields={FIELDS!r}, partitions={partitions})\n"
    (folder / "shop.py").write_text(text, encoding="utf-8")


def attend(*followers: SourceArchiver) -> None:
    for follower in followers:
        follower.attend()
    check_any_is_archived(followers)


@pytest.mark.parametrize("why", [Refused("its topic was made again"), OSError("no space")])
def test_a_refused_source_stops_no_other_and_leaves_its_table_to_a_repair(
    world: World, follow: Callable[[str], SourceArchiver], why: Exception
) -> None:
    shop, web = follow("shop"), follow("web")
    world.refused["shop"] = why
    attend(shop, web)
    assert (shop.describe()["refused"], web.describe()["refused"]) == (str(why), "")
    assert shop.describe()["is_temporary"] == isinstance(why, OSError)
    assert web.query is not None
    assert world.held == ["web"]


def test_a_refused_source_is_tried_again_as_it_is_declared_by_then(
    world: World, settings: Settings, follow: Callable[[str], SourceArchiver]
) -> None:
    shop, web = follow("shop"), follow("web")
    world.refused["shop"] = Refused("partitions=5")
    attend(shop, web)
    declare(settings.views_dir or Path(), partitions=5)
    del world.refused["shop"]
    world.pass_by(RETRY_S - 1)
    attend(shop, web)
    assert len(world.opened) == 2
    world.pass_by(1)
    attend(shop, web)
    assert [source.name for source in world.opened] == ["shop", "web", "shop"]
    assert world.opened[-1].partitions == 5
    assert (shop.refusal, shop.describe()["rows"]) == (None, 5)


def test_a_declaration_that_cannot_be_loaded_refuses_just_the_source_that_is_tried_again(
    world: World, settings: Settings, follow: Callable[[str], SourceArchiver]
) -> None:
    shop, web = follow("shop"), follow("web")
    world.refused["shop"] = Refused("partitions=5")
    attend(shop, web)
    (settings.views_dir or Path()).joinpath("shop.py").write_text("shop = Sourc", encoding="utf-8")
    world.pass_by(RETRY_S)
    attend(shop, web)
    assert "shop.py cannot be loaded" in shop.describe()["refused"]


def test_a_query_that_died_is_opened_again_alone_and_not_more_often_than_a_refused_one(
    world: World, follow: Callable[[str], SourceArchiver]
) -> None:
    shop, web = follow("shop"), follow("web")
    attend(shop, web)
    world.pass_by(RETRY_S)
    shop.query.die(RuntimeError("Kafka was away"))  # type: ignore[union-attr]
    attend(shop, web)  # it ran for a while: at once
    assert [source.name for source in world.opened] == ["shop", "web", "shop"]
    shop.query.die()  # type: ignore[union-attr]
    attend(shop, web)
    assert "archive-shop ended by itself" in shop.describe()["refused"]
    assert world.held == ["web"]
    world.pass_by(RETRY_S)
    attend(shop, web)
    assert (len(world.opened), shop.refusal) == (4, None)


def test_where_all_sources_are_refused_the_process_ends_with_every_remedy(
    world: World, follow: Callable[[str], SourceArchiver]
) -> None:
    check_any_is_archived([])
    world.refused = {"shop": Refused("fix the shop"), "web": Refused("fix the web")}
    with pytest.raises(Refused, match="fix the shop"):
        attend(follow("shop"))
    with pytest.raises(NothingArchived, match=r"(?s)all 2 .*shop: fix the shop.*web: fix the web"):
        attend(follow("shop"), follow("web"))


def test_the_status_names_the_refused_source_and_its_remedy(settings: Settings) -> None:
    assert status_text(settings, "shop") == "it has not written its status yet"
    write_status(status_file(settings), ProcessStatus(time.time()))
    assert status_text(settings, "shop") == "it is starting"
    sources = {"shop": {"refused": "partitions=5"}, "web": {"refused": ""}}
    write_status(status_file(settings), ProcessStatus(time.time(), sources=sources))
    assert check_heartbeat(status_file(settings)) is None
    assert refusals(status_file(settings)) == "source 'shop': partitions=5"
    said = {name: status_text(settings, name) for name in ("shop", "web", "new")}
    assert said["shop"] == "refuses it: partitions=5"
    assert said["web"] == "archives it"
    assert said["new"].startswith("does not know it yet")
    write_status(status_file(settings), ProcessStatus(time.time(), error="all are refused"))
    assert status_text(settings, "web") == "refuses it: all are refused"
    assert refusals(status_file(settings)) == ""


def test_an_old_status_is_no_sign_of_life(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    write_status(status_file(settings), ProcessStatus(now, sources={"shop": {"refused": ""}}))
    monkeypatch.setattr(time, "time", lambda: now + 60)
    assert status_text(settings, "shop") == "its last heartbeat is 60 s old"
