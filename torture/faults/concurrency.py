"""Concurrency: several runs or writers at once, and runs that are killed or stopped half-way."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hand_off.speed_views import SpeedViews
from torture.commands import BATCH_TIMEOUT_S, kill_group, output_of
from torture.errors import BrokenPromise, TortureError
from torture.fault import RUN_S, Fault
from torture.installation import Installation
from torture.runs import beside, run_under_way, signal_group
from torture.wait import wait_for

STILL_S = 6.0
"""A writer without a heartbeat for this long counts as dead."""
BESIDE_S = 40.0
"""Time for a second process to do something: Spark alone takes ten seconds to start."""
TAKES_S = 20.0
REFUSED_S = 60.0
LEASE_HELD = 75
WAITS_FOR_WRITER, WRITER_STARTED = "another writer lives", "started"
TABLE_BUSY, ARCHIVER_OPENED = "is written by", "opened"
LOG_TEXTS = {
    WAITS_FOR_WRITER: "speed_layer.writer",
    WRITER_STARTED: "speed_layer.writer",
    TABLE_BUSY: "master_dataset.table.append",
    ARCHIVER_OPENED: "master_dataset.archiver.archive",
}
"""What a second process logs, and the module that logs it: this shows that the fault had an effect."""
LEFT_AT = ("run.after_open", "run.after_number", "run.after_data", "run.before_publish", "run.after_publish")


@contextmanager
def runs_at_once(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Three runs of one source, almost at one moment."""
    runs = []
    for _ in range(3):
        runs.append(installation.commands.spawn_batch_run())
        time.sleep(chance.uniform(0, 0.5))
    try:
        yield
    finally:
        for run in runs:
            output_of(run, BATCH_TIMEOUT_S)
    codes = sorted(run.returncode for run in runs)
    installation.notes.append(f"the runs ended with {codes}")
    if LEASE_HELD not in codes:
        raise TortureError(f"none of three runs met another: they ended with {codes}")


@contextmanager
def run_killed(installation: Installation, chance: random.Random) -> Iterator[None]:
    """At any moment of its life."""
    with installation.run_turn:
        run = installation.commands.spawn_batch_run()
        after_s = chance.uniform(2, 16)
        with suppress(subprocess.TimeoutExpired):
            run.communicate(timeout=after_s)
        if run.returncode is not None:
            raise TortureError(f"the run had ended by itself, with {run.returncode}, before it was to be killed")
        kill_group(run)
        run.communicate()
    installation.notes.append(f"killed after {after_s:.1f} s")
    yield


@contextmanager
def run_left_behind(installation: Installation, chance: random.Random) -> Iterator[None]:
    """A run stands still in the middle with all of its processes, another is tried, and the first goes on."""
    with run_under_way(installation, chance.choice(LEFT_AT)) as run:
        signal_group(run, signal.SIGSTOP)  # its JVM too
        other = installation.commands.spawn_batch_run()
        said = output_of(other, REFUSED_S)
    if other.returncode == 0:
        raise BrokenPromise(f"A run was published while another held the lease and stood still: {said[-500:]}")
    if other.returncode != LEASE_HELD:
        raise TortureError(f"the other run did not come to the lease: it ended with {other.returncode}: {said[-200:]}")
    yield


@contextmanager
def taken_over(installation: Installation, chance: random.Random) -> Iterator[None]:
    """The writer stands still for so long that a run takes its place; then it goes on, and must not write."""
    del chance
    with installation.redis() as client:
        views = SpeedViews(client, installation.source_name)
        installation.processes.stop_at("speed", "speed.before_apply")
        try:
            before = views.reader.snapshot().epoch
            time.sleep(STILL_S)
            with installation.run_turn:
                ended = installation.commands.batch_run()
            if views.reader.snapshot().epoch == before:
                raise TortureError(f"no run took over: it ended with {ended.code}: {ended.output[-200:]}")
        finally:
            installation.processes.signal("speed", signal.SIGCONT)
    yield


@contextmanager
def another_writer(installation: Installation, chance: random.Random) -> Iterator[None]:
    """A second speed layer of the same source waits for the first, which is killed: it takes that one's place."""
    with _beside(installation, "speed_layer") as lines:
        _wait_for_log(lines, BESIDE_S, WAITS_FOR_WRITER, WRITER_STARTED)
        time.sleep(chance.uniform(0, 2))
        installation.processes.kill("speed")
        _wait_for_log(lines, TAKES_S, WRITER_STARTED)
        yield


@contextmanager
def another_archiver(installation: Installation, chance: random.Random) -> Iterator[None]:
    """A second archiver of the same table: it is refused, or has the table before the first one does."""
    del chance
    with _beside(installation, "master_dataset.archiver") as lines:
        _wait_for_log(lines, BESIDE_S, TABLE_BUSY, ARCHIVER_OPENED)
        yield


LogLines = Callable[[], list[str]]
"""Returns the lines that a process has logged about the source until now."""


@contextmanager
def _beside(installation: Installation, module: str) -> Iterator[LogLines]:
    log = installation.folder / f"{module}.log"
    begin = log.stat().st_size if log.exists() else 0  # what others before it said is in the same file
    with beside(installation, module):
        yield lambda: lines_of(log, begin, installation.source_name)


def lines_of(log: Path, begin: int, source: str) -> list[str]:
    """What a log says of a source after its first `begin` bytes."""
    with log.open("rb") as file:
        file.seek(begin)
        text = file.read().decode("utf-8", errors="replace")
    return [line for line in text.splitlines() if f"source={source} " in f"{line} "]


def _wait_for_log(lines: LogLines, deadline_s: float, *texts: str) -> None:
    wait_for(
        f"the second process to log {' or '.join(texts)}",
        lambda: any(text in line for line in lines() for text in texts),
        deadline_s,
        every_s=0.2,
    )


FAULTS = [
    Fault("three runs at once", "concurrency", runs_at_once, cost_s=RUN_S + 30, lasting_s=1),
    Fault("a run is killed", "concurrency", run_killed, cost_s=12, weight=3),
    Fault("a run is left behind", "concurrency", run_left_behind, cost_s=RUN_S + 20),
    Fault("a run takes over", "concurrency", taken_over, cost_s=RUN_S, is_core=True),
    Fault("two speed layers", "concurrency", another_writer, lasting_s=4, cost_s=45),
    Fault("two archivers", "concurrency", another_archiver, lasting_s=2, cost_s=25),
]
