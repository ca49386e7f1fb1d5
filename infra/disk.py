"""Files that are on the disk when a function returns, not only in the page cache."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

SYNCED_AT_ONCE = 8


class FileStamp(NamedTuple):
    """What changes when a file is written or replaced."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


def file_stamp(path: Path) -> FileStamp | None:
    """The stamp of a file; None where there is none. Take it before you read: a later change then shows next time."""
    try:
        found = os.stat(path)  # noqa: PTH116  half the time of Path.stat, several times for each query
    except FileNotFoundError:
        return None
    return FileStamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def sync_file(path: Path) -> None:
    """Wait until a file's content is on the disk, and its checksums where Hadoop wrote some beside it.

    Spark reads those first: if a power cut took them, it cannot read the file ("Read past End of File").
    """
    for each in (path, path.with_name(f".{path.name}.crc")):
        if each == path or each.exists():
            with each.open("rb") as file:
                os.fsync(file.fileno())


def sync_files(paths: Sequence[Path]) -> None:
    """The same for several files. Several at a time: a disk serves them together."""
    _sync_together(sync_file, paths)


def sync_folder(path: Path) -> None:
    """Wait until a folder's list of names is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folders(paths: Sequence[Path]) -> None:
    """The same for several folders, like `sync_files`."""
    _sync_together(sync_folder, paths)


def _sync_together(sync: Callable[[Path], None], paths: Sequence[Path]) -> None:
    if len(paths) == 1:
        sync(paths[0])
        return
    with ThreadPoolExecutor(SYNCED_AT_ONCE, "sync") as pool:
        for _ in pool.map(sync, paths):  # raises what a thread raised
            pass


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing; their names are on the disk too."""
    if not path.parent.is_dir():
        make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)  # also of one that was there: who made it may have been killed before this


def replace_file(path: Path, text: str) -> None:
    """Write so that a reader sees the old file or the new one, whole, also after a crash. The folder must exist."""
    partial = _write_partial(path, text)
    partial.replace(path)
    sync_folder(path.parent)


def _write_partial(path: Path, text: str) -> Path:
    partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return partial
