"""Locks on files: held by one process at a time, and released by the system however that process ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

POLL_S = 0.02


class LockHeld(Exception):
    """Another process holds the lock; `holder` is what it wrote into the file, often its process id."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"Another process holds {str(path)!r}.")
        self.holder = holder


def lock(file: IO[Any]) -> None:
    """Lock an open file, and wait for that as long as it takes."""
    fcntl.flock(file, fcntl.LOCK_EX)


def try_lock(file: IO[Any] | int, *, shared: bool = False) -> bool:
    """Lock an open file or descriptor unless another holds it. Those who share a lock do not exclude each other."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def hold(path: Path, *, wait_s: float | None = None, holder: str = "", mode: int = 0o666) -> Iterator[None]:
    """Hold the lock of a file while the context lasts; the file is made with `mode` where there is none.

    Without `wait_s` it waits for its turn; else LockHeld is raised after so many seconds. `holder` is written into
    the file for the others to read.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "a+", encoding="utf-8") as file:
        if wait_s is None:
            lock(file)
        elif not _lock_within(file, wait_s):
            file.seek(0)
            raise LockHeld(path, file.read().strip())
        if holder:
            file.truncate(0)
            file.write(holder)
            file.flush()
        yield


def holder_of_lock(path: Path) -> str | None:
    """What the process that holds the lock wrote into the file; None when nobody holds it."""
    if not path.is_file():
        return None
    with path.open("a+", encoding="utf-8") as file:
        if try_lock(file, shared=True):
            return None
        file.seek(0)
        return file.read().strip()


def _lock_within(file: IO[Any], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not try_lock(file):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True
