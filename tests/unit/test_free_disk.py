"""The low-water mark of disks: what is refused, what is said, and that it ends by itself."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from prometheus_client import CollectorRegistry

from infra.rest.access_keys import add_key
from infra.rest.problems import Problem
from infra.settings import load_settings
from master_dataset.collector.app import create_app
from master_dataset.collector.free_disk import FreeDisk
from master_dataset.collector.limits import Budget
from master_dataset.collector.metrics import CollectorMetrics
from views.declarations import load_declarations

MB = 2**20


class Usage(NamedTuple):
    total: int
    used: int
    free: int


class Disks:
    """Free megabytes by folder; a folder that is not named here has plenty."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free_mb: dict[Path, float] = {}
        monkeypatch.setattr(shutil, "disk_usage", self.usage)

    def usage(self, folder: Path) -> Usage:
        return Usage(10**12, 0, int(self.free_mb.get(folder, 10**6) * MB))


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> Disks:
    return Disks(monkeypatch)


def test_events_are_refused_below_the_mark_until_there_is_room_again(tmp_path: Path, disks: Disks) -> None:
    disk = FreeDisk({"master": tmp_path}, 100)
    for free_mb, is_refused in ((101, False), (99, True), (0, True), (105, True), (111, False), (105, False)):
        disks.free_mb[tmp_path] = free_mb
        disk.look()
        assert bool(disk.low) == is_refused, free_mb
        if is_refused:
            with pytest.raises(Problem, match=r"The disk of the master dataset has \d+ MB free"):
                disk.check()
        else:
            disk.check()


def test_folder_that_is_not_made_yet_is_measured_where_it_will_be(tmp_path: Path, disks: Disks) -> None:
    disks.free_mb[tmp_path] = 1
    disk = FreeDisk({"master": tmp_path / "not" / "yet"}, 100)
    disk.look()
    assert disk.free == {"master": MB}


def test_disk_that_cannot_be_measured_refuses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_folder: Path) -> Usage:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(shutil, "disk_usage", fail)
    disk = FreeDisk({"master": tmp_path}, 100)
    disk.look()
    disk.check()


@pytest.mark.parametrize(
    ("bootstrap", "has_data", "watched"),
    [
        ("", True, {"kafka", "master"}),
        ("127.0.0.1:9092", True, {"kafka", "master"}),  # as the stack names it to its processes
        ("127.0.0.1:9092", False, {"master"}),
        ("kafka.example:9092", True, {"master"}),  # a cluster: its disks are its own affair
    ],
)
def test_disks_of_our_own_kafka_and_of_the_master_are_watched(
    tmp_path: Path, bootstrap: str, has_data: bool, watched: set[str]
) -> None:
    if has_data:
        (tmp_path / "kafka" / "data").mkdir(parents=True)
    disk = FreeDisk.of(load_settings(home=tmp_path, kafka_bootstrap=bootstrap))
    disk.look()
    assert disk.free.keys() == watched


def test_collector_says_what_is_full_and_takes_events_again(tmp_path: Path, disks: Disks) -> None:
    """Only requests that store something are refused, and nobody without a key hears of it."""
    (tmp_path / "kafka" / "data").mkdir(parents=True)
    settings = load_settings(home=tmp_path, kafka_bootstrap="127.0.0.1:1", collector_min_free_disk_mb=256)
    key = ("web", add_key(tmp_path, "web", ["produce", "consume", "admin"]))
    app = create_app(settings, load_declarations(None))
    metrics = CollectorRegistry()
    CollectorMetrics(metrics, Budget(1), app.state.disk)

    def send(path: str, auth: tuple[str, str] | None = key, method: str = "POST") -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
                return await client.request(method, path, content=b"[]", auth=auth)

        return asyncio.run(ask())

    disks.free_mb[tmp_path / "kafka" / "data"] = 255.5
    app.state.disk.look()
    storing = ("/events/web", "/produce/web", "/produce", "/dead/web/replay?first=0", "/transactions")
    for path in (*storing, "/transactions/t/produce", "/transactions/t/produce/web"):
        answer = send(path)
        assert (answer.status_code, answer.headers["content-type"]) == (507, "application/problem+json"), path
        assert answer.headers["retry-after"] == "30"
        assert answer.json() == {
            "type": "urn:tidemark:problem:disk-almost-full",
            "title": "Insufficient Storage",
            "status": 507,
            "detail": "The disk of Kafka has 255 MB free, and events are only taken above 256 MB "
            "(collector_min_free_disk_mb). Nothing was stored. Send it again later; the operator has to free space or "
            "to grow the disk.",
            "disk": "kafka",
            "free_bytes": int(255.5 * MB),
            "required_bytes": 256 * MB,
        }
    for step in ("commit", "abort", "offsets", ""):  # what has begun can still be ended and looked at
        answer = send(f"/transactions/t/{step}") if step else send("/transactions/t", method="GET")
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:tidemark:problem:unknown-transaction"), step
    assert send("/events/web", auth=None).status_code == 401
    assert metrics.get_sample_value("tidemark_collector_disk_low", {"disk": "kafka"}) == 1
    assert metrics.get_sample_value("tidemark_collector_disk_low", {"disk": "master"}) == 0
    disks.free_mb.clear()
    app.state.disk.look()
    assert send("/events/nothing").status_code == 404  # the next thing that is checked
    assert metrics.get_sample_value("tidemark_collector_disk_low", {"disk": "kafka"}) == 0
