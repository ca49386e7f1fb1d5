"""How an installation is, once a second: lag, errors, memory, open files, disks. And whether it only ever grows."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil
from redis.exceptions import RedisError

from hand_off.speed_views import SpeedViews
from infra.errors import InfraError
from master_dataset.cut import count_between
from torture.checker import Checker
from torture.disks import FILLER, FOLDERS, ROOT
from torture.errors import TortureError
from torture.fates import Fates
from torture.installation import Installation
from torture.processes import SERVICES
from torture.result import Sample

EVERY_S = 1.0
BYTES = "bytes"
MEASURE_EVERY = 5
DISK_EVERY = 15
ROOM_DISK = 300 * 2**20
"""Of what is to be kept: Kafka's log and the master dataset grow by what is sent."""
GROWTH, ROOM_BYTES, ROOM_FILES = 1.6, 250 * 2**20, 60
"""Growth that is taken for a leak: by this factor, and by so many bytes or files, from the first third to the last."""
ROOMS = {
    **dict.fromkeys(("kafka", "archiver", "speed"), 2**30),  # a heap fills up before anything of it is given back
    "redis.used": 32 * 2**20,
    "generations": 4,
    "scratch": 1000,  # a session has a hundred, and several run at once
    "spark": 64 * 2**20,
    "batch": 64 * 2**20,
    "logs": 64 * 2**20,
}
"""Where another room is right: bytes, or how many."""


class Sampler:
    """A thread that looks."""

    def __init__(self, installation: Installation, checker: Checker, fates: Fates, began: float) -> None:
        self._installation, self._checker, self._fates, self._began = installation, checker, fates, began
        self.samples: list[Sample] = []
        self._errors = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling."""
        self._stopping.set()
        self._thread.join(30)

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(EVERY_S):
            seen = self._checker.seen
            is_measured = number % MEASURE_EVERY == 0
            memory, files = self._measure() if is_measured else ({}, {})
            lag = count_between(seen.cut, self._fates.ends())
            at, errors = round(time.monotonic() - self._began, 2), self._new_errors()
            disk = self._on_disk() if number % DISK_EVERY == 0 else {}
            self.samples.append(Sample(at, lag, seen.cut, seen.is_degraded, memory, files, disk, errors))
            number += 1

    def _new_errors(self) -> int:
        """How many requests had no answer since this was asked last."""
        before, self._errors = self._errors, sum(self._checker.refusals.values())
        return self._errors - before

    def _measure(self) -> tuple[dict[str, int], dict[str, int]]:
        memory: dict[str, int] = {}
        files: dict[str, int] = {}
        for name in self._installation.processes.services:
            if not self._installation.processes.is_ready((name,)):
                continue  # one that begins has not much yet, and would make the others look grown
            with suppress(psutil.Error, TortureError, OSError):
                found = [psutil.Process(pid) for pid in self._installation.processes.pids(name)]
                if found:
                    memory[name] = sum(process.memory_info().rss for process in found)
                    files[name] = sum(process.num_fds() for process in found)
        with suppress(RedisError, OSError, ValueError, InfraError), self._installation.redis(2) as redis:
            info: dict[str, int] = redis.info("memory")
            memory["redis.used"] = info["used_memory"]
            files["generations"] = len(SpeedViews(redis, self._installation.source_name).reader.snapshot().generations)
        return memory, files

    def _on_disk(self) -> dict[str, int]:
        home = self._installation.home
        found = {name: sum(_sizes(home.root / name)) for name in FOLDERS if name != ROOT}
        return {**found, "scratch": sum(1 for _ in _sizes(home.spark / "scratch"))}


def _sizes(folder: Path) -> Iterator[int]:
    """What every file below takes; one that is removed meanwhile, or on a disk without power, is none."""
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                if name != FILLER:
                    yield Path(place, name).stat().st_blocks * 512  # not what it says: Kafka's indexes are mostly holes


def growth(samples: list[Sample]) -> list[str]:
    """What grew over the run, and did not stop: the last third of the samples beside the first."""
    return [
        *_grown(samples, BYTES, lambda sample: sample.memory, ROOM_BYTES),
        *_grown(samples, "open files or generations", lambda sample: sample.files, ROOM_FILES),
        *_grown(samples, "bytes or files on the disk", lambda sample: sample.disk, ROOM_DISK),
    ]


def _grown(samples: list[Sample], what: str, of: Callable[[Sample], dict[str, int]], room: int) -> list[str]:
    found = []
    for name in sorted({name for sample in samples for name in of(sample)}):
        values = [of(sample)[name] for sample in samples if name in of(sample)]
        third = len(values) // 3
        if third < 5:
            continue
        first, last = median(values[:third]), median(values[-third:])
        enough = ROOMS.get(name, room) if what == BYTES or name not in SERVICES else room
        if last > first * GROWTH and last > first + enough:
            found.append(f"{name}: {first:.0f} {what} in the first third, {last:.0f} in the last")
    return found
