"""Leases: one holder at a time, whose number is greater than any before, and who is named to the others."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from batch_layer.lease import lease as batch_lease
from hand_off.batch_folder import BatchFolder
from infra.failpoints import VARIABLE
from infra.home import Home
from infra.lease import Lease, LeaseHeld, LeaseLost, PosixLeases, held, own_processes
from infra.locks import hold
from infra.store import BadName
from master_dataset.importer.formats import ImportFormat, Options
from master_dataset.importer.inputs import find_input
from master_dataset.importer.journal import ImportJournal
from tests.tiers import times

TTL_S = 10.0
HOLD = """
import sys
from pathlib import Path
from infra.lease import PosixLeases
lease = PosixLeases(Path(sys.argv[1])).acquire("batch/web", 10, doing="batch run")
print(lease.number, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def leases(tmp_path: Path) -> PosixLeases:
    return PosixLeases(tmp_path / "deep" / "leases")


@contextmanager
def held_elsewhere(leases: PosixLeases) -> Iterator[tuple[subprocess.Popen[str], int]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(leases.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        number = int(other.stdout.readline())
        try:
            yield other, number
        finally:
            other.kill()


def test_lease_has_holder_host_and_a_number_that_grows(leases: PosixLeases) -> None:
    first = leases.acquire("batch/web", TTL_S, doing="batch run")
    assert (first.holder, first.host, first.number) == (f"process {os.getpid()}", socket.gethostname(), 1)
    with pytest.raises(LeaseHeld) as refused:
        leases.acquire("batch/web", TTL_S)
    assert refused.value.exit_code == 75
    assert refused.value.holder is not None
    assert f"process {os.getpid()} on {socket.gethostname()} (batch run) since 20" in str(refused.value)
    leases.renew(first)
    assert leases.acquire("batch/shop", TTL_S).number == 1, "another lease"
    leases.release(first)
    leases.release(first)
    assert leases.acquire("batch/web", TTL_S).number == 2
    with pytest.raises(LeaseLost):
        leases.renew(first)


@pytest.mark.process
def test_lease_of_another_process_ends_with_it_however_it_ends(leases: PosixLeases) -> None:
    with held_elsewhere(leases) as (other, number):
        holder = leases.holder("batch/web")
        assert holder is not None
        assert (holder.holder, holder.number, holder.doing) == (f"process {other.pid}", number, "batch run")
        with pytest.raises(LeaseHeld) as refused:
            leases.acquire("batch/web", TTL_S)
        assert refused.value.holder == holder
    assert leases.holder("batch/web") is None
    with held(leases, "batch/web", TTL_S) as lease:
        assert lease.number == number + 1


@pytest.mark.process
def test_who_waits_gets_the_lease_when_its_holder_ends(leases: PosixLeases) -> None:
    with held_elsewhere(leases) as (other, number), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(leases.acquire, "batch/web", TTL_S, wait_s=60.0)
        other.kill()
        assert waiting.result().number == number + 1


@pytest.mark.process
def test_holder_that_is_killed_before_it_says_who_it_is_wastes_its_number(leases: PosixLeases, tmp_path: Path) -> None:
    armed = tmp_path / "armed"
    armed.mkdir()
    for expected in (1, 3):
        (armed / "lease.after_number").touch()
        done = subprocess.run(
            [sys.executable, "-c", HOLD, str(leases.folder)], env={**os.environ, VARIABLE: str(armed)}, check=False
        )
        assert done.returncode == -signal.SIGKILL
        with held(leases, "batch/web", TTL_S) as lease:
            assert lease.number == expected + 1


@pytest.mark.parametrize("lost", ["number", "lock"])
@pytest.mark.parametrize("damage", [None, b"", b"\x00" * 30, b"\xff", b"[]", b"{}", b'{"number": "x"}', b"-"])
def test_number_grows_though_one_of_its_files_is_lost_or_damaged(
    leases: PosixLeases, lost: str, damage: bytes | None
) -> None:
    for _ in range(3):
        leases.release(leases.acquire("web", TTL_S))
    path = leases.folder / f"web.{lost}"
    path.unlink() if damage is None else path.write_bytes(damage)
    assert leases.acquire("web", TTL_S).number == 4


def test_removed_lock_file_is_noticed_when_the_lease_is_renewed(leases: PosixLeases) -> None:
    """Somebody cleaned up by hand: another process can take the lease now."""
    lease = leases.acquire("web", TTL_S)
    leases.renew(lease)
    (leases.folder / "web.lock").unlink()
    with pytest.raises(LeaseLost, match="number 1 is lost"):
        leases.renew(lease)
    assert PosixLeases(leases.folder).acquire("web", TTL_S).number == 2
    with pytest.raises(LeaseLost):
        leases.renew(lease)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4711",
        "null",
        '{"pid": 7}',
        '{"pid": 7, "since": 1e300}',
        '{"pid": 7, "since": "x"}',
        '{"since": NaN, "pid": 1}',
    ],
)
def test_holder_that_cannot_be_read_is_another_process(leases: PosixLeases, text: str) -> None:
    lease = leases.acquire("web", TTL_S)
    (leases.folder / "web.lock").write_text(text)
    with pytest.raises(LeaseHeld, match="is held by another process"):
        PosixLeases(leases.folder).acquire("web", TTL_S)
    leases.release(lease)


def test_holder_as_the_first_version_wrote_it_is_read(leases: PosixLeases) -> None:
    lease = leases.acquire("web", TTL_S)
    (leases.folder / "web.lock").write_text(json.dumps({"pid": 7, "since": 0.0, "doing": "batch run"}))
    with pytest.raises(LeaseHeld, match=r"process 7 on this host \(batch run\) since 1970-01-01 00:00:00 UTC"):
        PosixLeases(leases.folder).acquire("web", TTL_S)
    leases.release(lease)


@pytest.mark.parametrize("name", ["", "../web", "/web", "a/../../web", "a b"])
def test_lease_stays_in_its_folder(leases: PosixLeases, name: str) -> None:
    with pytest.raises(BadName):
        leases.acquire(name, TTL_S)


@pytest.mark.parametrize("ttl_s", [0, -1])
def test_lease_lasts_longer_than_nothing(leases: PosixLeases, ttl_s: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        leases.acquire("web", ttl_s)


def test_of_many_threads_one_holds_a_lease_and_numbers_never_repeat(leases: PosixLeases) -> None:
    inside, numbers = threading.Lock(), list[int]()

    def work(_: int) -> None:
        for _ in range(5):
            with held(PosixLeases(leases.folder), "web", TTL_S, wait_s=60.0) as lease:
                assert inside.acquire(blocking=False), "two are inside at once"
                numbers.append(lease.number)
                inside.release()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert numbers == list(range(1, 31))


class LeaseMachine(RuleBasedStateMachine):
    """Leases of three holders beside a model: a name has one holder, and numbers grow."""

    names = st.sampled_from(["a", "b/c"])
    who = st.integers(0, 2)

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.holders = [PosixLeases(Path(self.folder.name)) for _ in range(3)]
        self.held: dict[str, tuple[int, Lease]] = {}
        self.last = {"a": 0, "b/c": 0}
        self.old: list[tuple[int, Lease]] = []

    def teardown(self) -> None:
        for who, lease in self.held.values():
            self.holders[who].release(lease)
        self.folder.cleanup()

    @rule(name=names, who=who)
    def acquire(self, name: str, who: int) -> None:
        if name in self.held:
            with pytest.raises(LeaseHeld) as refused:
                self.holders[who].acquire(name, TTL_S)
            assert refused.value.holder is not None
            assert refused.value.holder.number == self.held[name][1].number
            return
        lease = self.holders[who].acquire(name, TTL_S)
        assert lease.number > self.last[name]
        self.held[name], self.last[name] = (who, lease), lease.number

    @rule(name=names)
    def release(self, name: str) -> None:
        if name in self.held:
            who, lease = self.held.pop(name)
            self.holders[who].release(lease)
            self.old.append((who, lease))

    @rule(which=st.integers(0, 99))
    def renew_an_old_one(self, which: int) -> None:
        if self.old:
            who, lease = self.old[which % len(self.old)]
            with pytest.raises(LeaseLost):
                self.holders[who].renew(lease)
            self.holders[who].release(lease)

    @invariant()
    def holders_keep_what_they_hold(self) -> None:
        for who, lease in self.held.values():
            self.holders[who].renew(lease)


LeaseMachine.TestCase.settings = settings(max_examples=times(20, 400), stateful_step_count=15, deadline=None)
TestLeaseMachine = LeaseMachine.TestCase


# ---- who takes leases ------------------------------------------------------------


def _home(folder: Path) -> AbstractContextManager[None]:
    home = Home(folder / "home")
    home.prepare()
    return home.locked()


def _batch(folder: Path) -> AbstractContextManager[None]:
    return batch_lease(BatchFolder(folder / "web"), "batch run")


def _archiver(folder: Path) -> AbstractContextManager[None]:
    from master_dataset.table.append import archiver_lock

    return archiver_lock(folder / "web")


def _alerts(folder: Path) -> AbstractContextManager[None]:
    from serving_layer.alerts.process import _leased

    return _leased(folder / "alerts")


def _import(folder: Path) -> AbstractContextManager[None]:
    file = folder / "events.jsonl"
    file.write_text("{}")
    return ImportJournal(folder / "imports", find_input(str(file)), "web", ImportFormat.NDJSON, Options()).locked()


@pytest.mark.parametrize("take", [_home, _batch, _archiver, _alerts, _import])
def test_who_finds_a_lease_held_learns_of_its_holder_host_and_since_when(
    tmp_path: Path, take: Callable[[Path], AbstractContextManager[None]]
) -> None:
    with take(tmp_path):
        with pytest.raises(Exception, match="process") as refused, take(tmp_path):
            pass
        assert refused.value.exit_code == 75  # type: ignore[attr-defined]
        holder = rf"process {os.getpid()} on {socket.gethostname()} \(.*\) since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"
        assert re.search(holder, str(refused.value))
    with take(tmp_path):
        pass


def test_holder_of_a_home_is_known_by_its_process_also_where_an_older_version_holds_it(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.prepare()
    assert home.holder() is None
    with home.locked():
        assert home.holder() == os.getpid()
    with hold(home.run / "supervisor.lock", holder="4711"):
        assert home.holder() == 4711


def test_process_on_another_host_is_not_taken_for_one_of_this(tmp_path: Path) -> None:
    """A command that stops the archiver would kill a stranger."""
    from master_dataset.table.append import archiver_lock, lock_holder

    with archiver_lock(tmp_path / "web"):
        assert lock_holder(tmp_path / "web") == os.getpid()
        (path,) = tmp_path.rglob("archiver.lock")
        text = path.read_text()
        path.write_text(text.replace(socket.gethostname(), "renamed"))
        assert lock_holder(tmp_path / "web") == os.getpid(), "this machine got another name"
        assert own_processes()
        path.write_text(text.replace(own_processes(), "those of another machine"))
        assert lock_holder(tmp_path / "web") is None
