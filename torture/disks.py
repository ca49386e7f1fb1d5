"""Small disks of an installation's own, one for each data folder: to be filled up, and to lose their power.

Each is an ext4 file system in a file, mounted by a loop device. `full` takes all its free blocks. `lose_power` is what
xfstests uses for the purpose: the file system is shut down without flushing anything, not even its journal, so that
the next mount finds exactly what was synced (and what the kernel had written back by itself, as on any machine).
Limits of the model: the disk itself keeps what it was given in order, it neither tears a sector nor lies about a flush.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

from infra.home import Home
from torture.errors import TortureError
from torture.wait import wait_for

ROOT = "."
FOLDERS = (ROOT, "kafka", "redis", "master", "batch", "spark", "logs")
"""Of a home. The root holds keys, ports and status. Mounted in this order."""
SIZE_MB = 1024
SHUT_DOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
WITHOUT_FLUSHING = 2
OPTIONS = "loop,noatime,noauto_da_alloc,commit=120"
"""No heuristic of ext4 syncs for us what we did not, and its journal is not written out of turn."""
FILLER = ".filler"
MIN_FREE = 16
"""Blocks: with fewer left, nothing that matters fits."""
TAKE_EVERY_S = 0.1


class Disks:
    """The disks below a home. Made and mounted by `mount`, which the installation calls before it starts."""

    def __init__(self, home: Path, images: Path) -> None:
        self.home, self._images = home, images

    def path(self, folder: str) -> Path:
        """Where a disk is mounted."""
        return self.home if folder == ROOT else self.home / folder

    def mount(self) -> None:
        """Mount all of them; create those that do not exist yet."""
        self._images.mkdir(parents=True, exist_ok=True)
        if not self._images.is_mount():  # in memory: a flush of theirs need not wait for this machine's disk
            _run("mount", "-t", "tmpfs", "-o", f"size={len(FOLDERS) * SIZE_MB}m", "tmpfs", str(self._images))
        for folder in FOLDERS:
            path, image = self.path(folder), self._image(folder)
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.is_mount():
                continue
            is_new = not image.exists()
            if is_new:
                _make(image)
            _run("mount", "-o", OPTIONS, str(image), str(path))
            if is_new:
                (path / "lost+found").rmdir()  # a home holds nothing of others
                path.chmod(0o700)
            (path / FILLER).unlink(missing_ok=True)  # that it went was not synced before the power was lost
            if folder == ROOT:
                Home(self.home).prepare()  # marked as ours, before there are folders in it

    def unmount(self) -> None:
        """Unmount all, orderly. What is on them stays for the next `mount`."""
        for folder in reversed(FOLDERS):
            self._unmount(folder)

    def throw_away(self) -> None:
        """Unmount all, with everything that is on them."""
        with ExitStack() as mounted:  # the last first, and each whatever becomes of the others
            if self._images.is_mount():
                mounted.callback(_run, "umount", str(self._images))
            for folder in FOLDERS:
                mounted.callback(self._unmount, folder)

    def lose_power(self) -> None:
        """Everything that was not synced is gone. Nobody may use them now: end all processes, then call `mount`."""
        for folder in FOLDERS:
            descriptor = os.open(self.path(folder), os.O_RDONLY)
            try:
                fcntl.ioctl(descriptor, SHUT_DOWN, struct.pack("I", WITHOUT_FLUSHING))
            finally:
                os.close(descriptor)

    @contextmanager
    def full(self, folder: str) -> Iterator[None]:
        """Nothing more fits onto a disk inside the block. What becomes free meanwhile is taken too, within a moment."""
        path = self.path(folder)
        filler, healed = path / FILLER, threading.Event()

        def keep_full(descriptor: int, taken: int) -> None:
            while not healed.wait(TAKE_EVERY_S):
                if _free_blocks(path) > MIN_FREE:  # less cannot always be had, and trying makes ext4 sync
                    taken = _take_all(descriptor, taken)

        with filler.open("wb") as file:
            try:
                taken = _take_all(file.fileno())
                if (left := _free_blocks(path)) > MIN_FREE:
                    raise TortureError(f"{path} still has {left} free blocks after it was filled up.")
                keeping = threading.Thread(target=keep_full, args=(file.fileno(), taken), daemon=True)
                keeping.start()
                try:
                    yield
                finally:
                    healed.set()
                    keeping.join()
            finally:
                filler.unlink(missing_ok=True)

    def _image(self, folder: str) -> Path:
        return self._images / f"{'root' if folder == ROOT else folder}.ext4"

    def _unmount(self, folder: str) -> None:
        path = self.path(folder)

        def is_unmounted() -> bool:
            if not os.path.ismount(path):
                return True
            with suppress(TortureError):  # a process that was killed just now may still hold a file
                _run("umount", str(path))
            return not os.path.ismount(path)

        wait_for(f"{path} to be unmounted", is_unmounted, deadline_s=30, every_s=0.2)


@cache
def missing() -> str:
    """What this machine lacks for such disks; empty if nothing. It is tried, once."""
    if os.geteuid() != 0:
        return "needs root, to mount disks of its own"
    if lacking := [name for name in ("mount", "umount", "mkfs.ext4") if shutil.which(name) is None]:
        return f"needs {', '.join(lacking)}"
    with tempfile.TemporaryDirectory() as folder:
        image, path = Path(folder) / "try.ext4", Path(folder) / "try"
        path.mkdir()
        try:
            _make(image, 16)
            _run("mount", "-o", OPTIONS, str(image), str(path))
            _run("umount", str(path))
        except TortureError as error:
            return f"cannot mount a disk of its own here: {error}"
    return ""


def _make(image: Path, size_mb: int = SIZE_MB) -> None:
    with image.open("wb") as file:
        file.truncate(size_mb * 2**20)
    _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1", str(image))


def _take_all(descriptor: int, taken: int = 0) -> int:
    """Reserve free blocks until there are none, after the bytes that are taken; returns how many are then."""
    step = 64 * 2**20
    while step >= 4096:
        try:
            os.posix_fallocate(descriptor, taken, step)
            taken += step
        except OSError:  # no room for so much
            step //= 2
    return taken


def _free_blocks(path: Path) -> int:
    return os.statvfs(path).f_bavail


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise TortureError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
