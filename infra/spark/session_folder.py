"""A scratch folder of a Spark session, removed with its process: after kill -9, when the next session starts.

Spark and its libraries remove their files themselves when they end in order, and only then.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from infra.locks import lock, try_lock

LOCK = ".lock"
LEFT = re.compile(r"\d+-[0-9a-f]{8}|(spark|blockmgr|artifacts)-[0-9a-f-]{36}")
"""Folders that a session left: ours, and Spark's own from when it had none of ours."""


class _Own(NamedTuple):
    pid: int
    folder: Path
    lock: IO[str]
    """Its lock says that the process lives."""


_owned: dict[Path, _Own] = {}


def own_folder(parent: Path) -> Path:
    """A folder below `parent` for this process alone. What others left there that live no more is removed."""
    parent = parent.absolute()
    found = _owned.get(parent)
    if found is None or found.pid != os.getpid():  # a fork has its parent's, and may not take it for its own
        parent.mkdir(parents=True, exist_ok=True)
        _remove_dead(parent)
        found = _owned[parent] = _made(parent)
        atexit.register(_end, found)
    found.folder.mkdir(parents=True, exist_ok=True)  # the JVM of this process knows it by name, and it may be gone
    return found.folder


def _end(own: _Own) -> None:
    if own.pid == os.getpid():
        shutil.rmtree(own.folder, ignore_errors=True)
    own.lock.close()


def _made(parent: Path) -> _Own:
    while True:
        folder = parent / f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        file = _lock_of(folder).open("w")
        lock(file)
        if _is_there(file):  # else one that began meanwhile took it for the lock of a dead one
            return _Own(os.getpid(), folder, file)
        file.close()


def _remove_dead(parent: Path) -> None:
    """A JVM may live a moment longer than what started it, and write: what is left so, the next one removes."""
    for path in parent.glob(f"*{LOCK}"):
        with suppress(OSError), path.open("r+") as file:  # for writing, or NFS gives no exclusive lock
            if not try_lock(file):
                continue  # it lives
            folder = path.with_name(path.name.removesuffix(LOCK))
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                path.unlink()
    for folder in parent.iterdir():
        if LEFT.fullmatch(folder.name) and not _lock_of(folder).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _is_there(lock: IO[str]) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(Path(lock.name).stat(), os.fstat(lock.fileno()))
    return False


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + LOCK)
