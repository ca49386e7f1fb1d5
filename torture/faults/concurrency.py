"""Several at once: runs beside runs, writers beside writers, and runs that are killed or left behind."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from torture.fault import Fault
from torture.installation import BATCH_TIMEOUT_S, Installation, end_group

BESIDE_S = 12.0
STILL_S = 6.0
"""Longer than a writer that says nothing is taken to live."""


@contextmanager
def runs_at_once(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Three runs of one source, almost at one moment."""
    runs = []
    for _ in range(3):
        runs.append(installation.spawn("batch", "run", "--source", installation.source_name))
        time.sleep(chance.uniform(0, 0.5))
    try:
        yield
    finally:
        for run in runs:
            _end(run, BATCH_TIMEOUT_S)


@contextmanager
def run_killed(installation: Installation, chance: random.Random) -> Iterator[None]:
    """At any moment of its life."""
    with installation.run_turn:
        run = installation.spawn("batch", "run", "--source", installation.source_name)
        _end(run, chance.uniform(2, 16))
    yield


@contextmanager
def run_left_behind(installation: Installation, chance: random.Random) -> Iterator[None]:
    """A run stands still in the middle, another is tried, and the first goes on."""
    with installation.run_turn:
        run = installation.spawn("batch", "run", "--source", installation.source_name)
        time.sleep(chance.uniform(3, 10))
        if run.poll() is None:
            run.send_signal(signal.SIGSTOP)
        other = installation.spawn("batch", "run", "--source", installation.source_name)
        _end(other, 8)
        if run.poll() is None:
            run.send_signal(signal.SIGCONT)
        _end(run, BATCH_TIMEOUT_S)
    yield


@contextmanager
def taken_over(installation: Installation, chance: random.Random) -> Iterator[None]:
    """The writer stands still for so long that a run takes its place; then it goes on, and must not write."""
    del chance
    installation.stand_still("speed", "speed.before_apply")
    try:
        time.sleep(STILL_S)
        with installation.run_turn:
            installation.batch_run()
    finally:
        installation.signal("speed", signal.SIGCONT)
    yield


@contextmanager
def another_writer(installation: Installation, chance: random.Random) -> Iterator[None]:
    """A second speed layer of the same source, and the first is killed under it."""
    with _beside(installation, "speed_layer"):
        time.sleep(chance.uniform(4, BESIDE_S))
        installation.kill("speed")
        yield


@contextmanager
def another_archiver(installation: Installation, chance: random.Random) -> Iterator[None]:
    """A second archiver of the same table."""
    with _beside(installation, "master_dataset.archiving"):
        time.sleep(chance.uniform(4, BESIDE_S))
        yield


@contextmanager
def _beside(installation: Installation, module: str) -> Iterator[None]:
    process = installation.spawn_module(module)
    try:
        yield
    finally:
        end_group(process)
        process.wait()


def _end(process: subprocess.Popen[str], after_s: float) -> None:
    """Wait for a process, and kill it if it is still there after so many seconds."""
    try:
        process.communicate(timeout=after_s)
    except subprocess.TimeoutExpired:
        end_group(process)
        process.communicate()


FAULTS = [
    Fault("three runs at once", "concurrency", runs_at_once, cost_s=35, lasting_s=1),
    Fault("a run is killed", "concurrency", run_killed, cost_s=12, weight=3),
    Fault("a run is left behind", "concurrency", run_left_behind, cost_s=35),
    Fault("a run takes over", "concurrency", taken_over, cost_s=35, weight=2),
    Fault("two speed layers", "concurrency", another_writer, lasting_s=4, cost_s=35),
    Fault("two archivers", "concurrency", another_archiver, lasting_s=2, cost_s=15),
]
