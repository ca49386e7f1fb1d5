"""The faults themselves: that there is one for each thing that can be hurt, and what they do to a file."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from infra.stack.services import build_services
from torture import disks
from torture.commands import RunTurn
from torture.errors import TortureError
from torture.faults import all_faults, clocks, damage, imports, network, topics
from torture.faults.failpoints import IN_OVERTAKES, IN_RUNS, IN_SERVICES
from torture.installation import Installation
from torture.links import PAIRS
from torture.processes import SERVICES
from torture.proxy import ProxyMode
from torture.supervised import LiveEnvironment

CHANCE = random.Random(1)  # noqa: S311  no secret


def names(kind: str) -> list[str]:
    return [fault.name for fault in all_faults() if fault.kind == kind]


@pytest.fixture
def bare(tmp_path: Path) -> Installation:
    """One that was never started, without proxies and disks."""
    return Installation(tmp_path / "bare")


def test_no_two_faults_share_a_name() -> None:
    found = [fault.name for fault in all_faults()]
    assert len(set(found)) == len(found)


def test_every_pair_is_hurt_in_every_way() -> None:
    assert len(names("network")) == len(network.HURT_PAIRS) * (len(ProxyMode) - 1)
    assert {*PAIRS} - {*network.HURT_PAIRS} == {("batch", "kafka")}


def test_every_data_folder_can_be_full_and_every_clock_wrong() -> None:
    assert len(names("disk")) == len(disks.FOLDERS)
    assert len(names("clock")) == len(SERVICES) * len(clocks.SKEWS_S)


@pytest.mark.process
def test_a_fault_whose_means_are_missing_says_what_to_do(bare: Installation) -> None:
    strikes = [
        next(fault for fault in all_faults() if fault.kind == kind).strike for kind in ("network", "disk", "power")
    ]
    for strike in strikes:
        with pytest.raises(TortureError, match=r"give the installation|has_disks=True"), strike(bare, random.Random(2)):  # noqa: S311
            pass


def test_every_process_is_killed_paused_and_set_wrong() -> None:
    """The scheduler is no service of an installation under torture: it is started to be killed."""
    everything = {fault.name for fault in all_faults()}
    for service in SERVICES:
        wanted = {f"kill {service}", f"kill {service}, again and again", f"{service} stands still for 8 s"}
        assert wanted <= everything
    assert "the scheduler is killed in its run" in everything
    for service in set(SERVICES) - {"redis", "kafka"}:  # those may work silently for long
        assert f"{service} hangs and is killed by the supervisor" in everything


def test_what_starts_everything_twice_is_left_to_long_programmes() -> None:
    faults = all_faults()
    hangs = [fault for fault in faults if "hangs and is killed" in fault.name]
    chance_of_any = sum(f.weight / f.cost_s**2 for f in hangs) / sum(
        f.weight / f.cost_s**2 for f in faults if f.kind == "pause"
    )
    assert chance_of_any < 0.001
    assert not any(fault.is_core for fault in hangs)


def test_an_import_is_overtaken_and_the_overtake_killed_at_each_step() -> None:
    everything = {fault.name for fault in all_faults()}
    assert "history is imported, and a run overtakes" in everything
    assert {f"an overtake killed at {name}" for name in (*IN_OVERTAKES, "run.after_publish", "speed.before_load")} <= (
        everything
    )
    points = {*imports.KILLED_AT, *imports.BEFORE_APPEND, *(each for found in imports.AFTER.values() for each in found)}
    assert points <= {*IN_RUNS, *IN_SERVICES, *IN_OVERTAKES}


@pytest.mark.process
def test_the_turn_to_make_runs_is_had_at_once_from_a_run_that_yields() -> None:
    turn, killed = RunTurn(), []

    def background() -> None:
        with turn, subprocess.Popen(["sleep", "60"], text=True, start_new_session=True) as run:
            turn.yields(run)
            begun.set()
            killed.append(run.wait())

    begun = threading.Event()
    thread = threading.Thread(target=background)
    thread.start()
    assert begun.wait(10)
    with turn:
        thread.join(10)
    assert killed == [-signal.SIGKILL]


def test_the_same_chance_gives_the_same_condition() -> None:
    one, other = (network.condition_by(ProxyMode.TRICKLE, random.Random(7)) for _ in range(2))  # noqa: S311
    assert one == other


def test_partitions_are_declared_where_the_source_is(tmp_path: Path) -> None:
    path = tmp_path / "declared.py"
    path.write_text('shop = Source(\n    "shop",\n    fields="x string",\n)\n')
    for count in (4, 5):
        topics.declare_partitions(path, "shop", count)
        assert path.read_text() == f'shop = Source(\n    "shop", partitions={count},\n    fields="x string",\n)\n'
    with pytest.raises(TortureError, match="does not declare the source 'other'"):
        topics.declare_partitions(path, "other", 4)


def test_partitions_of_a_source_that_no_file_declares_stay_as_they_are(bare: Installation) -> None:
    for path in bare.views_dir.glob("*.py"):
        path.unlink()
    with pytest.raises(TortureError, match="declares the source 'shop'"), topics.strike_partitions(bare, CHANCE):
        pass


def test_harm_is_harm_and_takes_the_checksum_along(tmp_path: Path) -> None:
    path, checksum = tmp_path / "file", tmp_path / ".file.crc"
    for harm in (damage.empty, damage.tear, damage.change):
        path.write_bytes(bytes(range(256)) * 8)
        checksum.write_bytes(b"sum")
        harm(path, random.Random(3))  # noqa: S311
        assert path.read_bytes() != bytes(range(256)) * 8
        assert not checksum.exists()
    damage.remove(path, CHANCE)
    assert not path.exists()


def test_a_service_gets_the_environment_of_the_moment_it_is_started(bare: Installation) -> None:
    file = bare.environments.write()
    found = LiveEnvironment({"USUAL": "1"}, "speed", file)
    before = dict(found)
    bare.environments.more["speed"] = {"LD_PRELOAD": "/lib/x.so"}
    bare.environments.write()
    assert before["USUAL"] == "1"
    assert "LD_PRELOAD" not in before
    assert dict(found) == {**before, "LD_PRELOAD": "/lib/x.so"}


@pytest.mark.process
def test_services_under_torture_are_those_of_the_platform(bare: Installation) -> None:
    bare.home.prepare()
    assert {service.name for service in build_services(bare.settings)} == set(SERVICES)


@pytest.mark.process
@pytest.mark.parametrize("seconds", clocks.SKEWS_S)
def test_a_clock_is_wrong_by_as_much_as_was_asked_for_or_it_is_said_what_is_missing(
    tmp_path: Path, seconds: int
) -> None:
    if said := clocks.missing():
        assert "apt-get install" in said
        with pytest.raises(TortureError, match="apt-get install"):
            clocks.skewed(seconds, tmp_path)
        return
    # A client of Kafka that waits for a broker which is not there, Python's sleep, its locks: all take what they take.
    asked = """if True:
        import threading, time
        from confluent_kafka.admin import AdminClient
        clock, began = time.time(), time.perf_counter()
        try:
            AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}).list_topics(timeout=0.3)
        except Exception:
            time.sleep(0.1)
            threading.Event().wait(0.1)
        print(clock, time.perf_counter() - began)
    """
    done = subprocess.run(
        [sys.executable, "-c", asked], env={**os.environ, **clocks.skewed(seconds, tmp_path)}, timeout=90,
        capture_output=True, check=True,
    )  # fmt: skip
    clock, took = map(float, done.stdout.split())
    assert abs(clock - time.time() - seconds) < 120
    assert 0.5 <= took < 60
