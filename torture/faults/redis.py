"""Redis loses what it had: all of it, what says what it is, its files, or everything since a snapshot."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from torture.errors import TortureError
from torture.fault import RUN_S, Fault
from torture.installation import Installation
from torture.wait import wait_for

PARTS = ("epoch", "meta.2", "gens")
"""Keys by which speed views are known to be whole. A state alone cannot be lost: Redis keeps all or forgets the end."""
GONE_S = 10.0
MAX_DELAY_S = 4.0


@contextmanager
def flush(installation: Installation, chance: random.Random) -> Iterator[None]:
    """FLUSHALL: nothing is left."""
    del chance
    with installation.redis() as client:
        client.flushall()
    yield


@contextmanager
def delete(part: str, installation: Installation, chance: random.Random) -> Iterator[None]:
    """One of the keys that everything hangs on."""
    del chance
    with installation.redis() as client:
        client.delete(f"tidemark:{{{installation.source_name}}}:{part}")
    yield


@contextmanager
def empty(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Its files are removed, and it starts again without them."""
    del chance
    with _between_lives(installation) as folder:
        _clear(folder)
    yield


@contextmanager
def set_back(installation: Installation, chance: random.Random) -> Iterator[None]:
    """It comes back with the files of some seconds ago, as after a disk that lied, or a restored snapshot."""
    with _set_back(installation):
        time.sleep(chance.uniform(0.5, MAX_DELAY_S))
    yield


@contextmanager
def set_back_across_run(installation: Installation, chance: random.Random) -> Iterator[None]:
    """It comes back with the files of before a run that was published since."""
    del chance
    with installation.run_turn, _set_back(installation):
        ended = installation.commands.batch_run()
        if ended.code:
            raise TortureError(f"no run was made in between: it ended with {ended.code}: {ended.output[-200:]}")
    yield


@contextmanager
def _set_back(installation: Installation) -> Iterator[None]:
    """What the block did to Redis is gone at its end; where the block fails, it stays.

    The snapshot is of one moment: Redis stands still while its files are copied.
    """
    snapshot = installation.folder / "redis.snapshot"
    shutil.rmtree(snapshot, ignore_errors=True)
    folder = installation.home.redis
    if not installation.processes.signal("redis", signal.SIGSTOP):
        raise TortureError("Redis does not run now: there is no moment to go back to")
    try:
        shutil.copytree(folder, snapshot)
    finally:
        installation.processes.signal("redis", signal.SIGCONT)
    try:
        yield
        with _between_lives(installation):
            _clear(folder)
            shutil.copytree(snapshot, folder, dirs_exist_ok=True)
    finally:
        shutil.rmtree(snapshot)


@contextmanager
def _between_lives(installation: Installation) -> Iterator[Path]:
    """Redis is dead and is not started again before the block ends."""
    supervisor = int(installation.processes.status()["pid"])
    pid = installation.processes.pid("redis")
    os.kill(supervisor, signal.SIGSTOP)
    try:
        installation.processes.kill("redis")
        if pid is not None:
            wait_for("Redis to be dead", lambda: _is_dead(pid), GONE_S)
        yield installation.home.redis
    finally:
        os.kill(supervisor, signal.SIGCONT)


def _is_dead(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != "redis.conf":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


FAULTS = [
    Fault("Redis is flushed", "redis", flush, cost_s=8),
    *(Fault(f"Redis loses {part}", "redis", partial(delete, part), cost_s=8) for part in PARTS),
    Fault("Redis loses its files", "redis", empty, cost_s=10),
    Fault("Redis is set back by seconds", "redis", set_back, cost_s=12, is_core=True),
    Fault("Redis is set back across a run", "redis", set_back_across_run, cost_s=RUN_S),
]
