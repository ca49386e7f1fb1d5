"""The LMDB files of read indexes, opened once in a process, however many indexes share them."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

from batch_layer.index.layout import FORMAT, IDS, KEYS, META, READABLE, SUMS, Level
from hand_off.errors import BatchError
from infra.disk import FileStamp, file_stamp
from infra.formats import reads

SEAL = b"tidemark-index-sum:"
SEAL_BYTES = len(SEAL) + hashlib.sha256().digest_size
"""At the end of a file, behind all that LMDB looks at: the checksum of what stands before it."""
READ_AT_ONCE = 2**20
MAX_SOUND = 10_000
TABLES = (*(level.table for level in Level), SUMS, IDS, KEYS)


@dataclass(frozen=True)
class IndexMeta:
    """What a file says of itself: its days with how many groups each has, its months, and its part of the keys."""

    grain_s: int
    is_keyed: bool
    days: dict[int, int]
    months: tuple[int, ...]
    answers: tuple[str, ...]
    first_key: int
    keys: int

    def to_bytes(self) -> bytes:
        """As it stands in the file."""
        return json.dumps({"format": FORMAT, **vars(self), "days": list(self.days.items())}).encode()

    @classmethod
    def from_bytes(cls, text: bytes | None) -> IndexMeta:
        """The inverse. OtherFormat where another version wrote it; other errors where it is damaged."""
        value = json.loads(text or b"null")
        if value["format"] not in READABLE:
            raise OtherFormat(f"has format {value['format']}; {reads(READABLE)}")
        value.pop("format")
        return cls(
            **{
                **value,
                "days": {int(day): int(groups) for day, groups in value["days"]},
                "months": tuple(value["months"]),
                "answers": tuple(value["answers"]),
            }
        )


class OtherFormat(ValueError):
    """A file of another version of Tidemark."""


@dataclass(frozen=True)
class IndexFile:
    """One opened file."""

    path: Path
    environment: Any
    tables: dict[bytes, Any]
    meta: IndexMeta

    def reading(self, *, buffers: bool = False) -> Any:
        """A transaction to read in. `buffers`: what it gives lies in the file, and is gone when the file is closed."""
        return self.environment.begin(buffers=buffers)

    def get(self, table: bytes, name: bytes) -> bytes | None:
        """One entry."""
        with self.environment.begin(self.tables[table]) as transaction:
            found: bytes | None = transaction.get(name)
        return found

    def entries(self, table: bytes, first: bytes = b"\x00", last: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The entries of a table with first <= name < last, by their names."""
        with self.reading() as transaction, transaction.cursor(self.tables[table]) as cursor:
            if cursor.set_range(first):
                for name, value in cursor.iternext():
                    if last is not None and name >= last:
                        return
                    yield name, value


# LMDB refuses to open a file twice in a process, and the run after shares files with the run before: while readers move
# from one to the other, both are open. So this is one table for the whole process.
_opened: dict[Path, tuple[IndexFile, int]] = {}
_lock = threading.RLock()
_sound: dict[Path, FileStamp | None] = {}
"""The files whose checksum this process has found right, and how they looked then: it is made once each."""


def open_file(path: Path) -> IndexFile:
    """Open a file to read, until `close_file`. BatchError where it is missing, damaged or of another format."""
    place = path.absolute()
    with _lock:
        is_open = place in _opened
    if not is_open:
        with _as_batch_error(place):
            _check_seal(place)  # all of the file is read: nobody who opens or closes another one is to wait for that
    with _lock:
        known = _opened.get(place)
        found, users = known if known is not None else (_open(place), 0)
        _opened[place] = found, users + 1
    return found


def close_file(file: IndexFile) -> None:
    """Let go of a file; it is closed when nobody else has it open."""
    with _lock:
        found, users = _opened.pop(file.path)
        if users > 1:
            _opened[file.path] = found, users - 1
        else:
            found.environment.close()


def seal_file(path: Path) -> None:
    """Add the checksum, once everything else is written. What a disk changes later is noticed, not believed."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.write(SEAL + _checksum(path, size))
        file.flush()
        os.fsync(file.fileno())


def _check_seal(path: Path) -> None:
    """ValueError unless the file is as it was written: LMDB would follow whatever its pages say."""
    stamp = file_stamp(path)  # before it is read: what is written meanwhile is seen next time
    if stamp is not None and _sound.get(path) == stamp:
        return
    size = path.stat().st_size - SEAL_BYTES
    with path.open("rb") as file:
        file.seek(max(size, 0))
        found = file.read()
    if size < 0 or not found.startswith(SEAL):
        raise ValueError("it was cut short, or another version of Tidemark wrote it")
    if found != SEAL + _checksum(path, size):
        raise ValueError("its bytes are not those that were written")
    if len(_sound) >= MAX_SOUND:
        _sound.clear()
    _sound[path] = stamp


def _checksum(path: Path, size: int) -> bytes:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while size and (part := file.read(min(size, READ_AT_ONCE))):
            found.update(part)
            size -= len(part)
    return found.digest()


def _open(path: Path) -> IndexFile:
    with ExitStack() as failed, _as_batch_error(path):
        _check_seal(path)
        environment = lmdb.open(
            str(path), readonly=True, subdir=False, lock=False, readahead=False, max_readers=512, max_dbs=len(TABLES)
        )
        failed.callback(environment.close)
        last_byte = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        if path.stat().st_size < last_byte:  # a look behind its end would end the process
            raise ValueError(f"it has {path.stat().st_size} bytes instead of {last_byte}")
        with environment.begin() as transaction:
            meta = IndexMeta.from_bytes(transaction.get(META))
        found = IndexFile(path, environment, {name: environment.open_db(name) for name in TABLES}, meta)
        failed.pop_all()
    return found


@contextmanager
def _as_batch_error(path: Path) -> Iterator[None]:
    """What is wrong with a file, as BatchError."""
    try:
        yield
    except (lmdb.Error, OSError, ValueError, TypeError, KeyError) as error:
        what = str(error) if isinstance(error, OtherFormat) else f"cannot be read ({error})"
        raise BatchError(
            f"The index {str(path)!r} {what}. The next batch run rebuilds it: `tidemark batch run`."
        ) from None


class Held:
    """The files of one index. They are closed when they were let go of and nobody reads any more."""

    def __init__(self, files: tuple[IndexFile, ...]) -> None:
        self._files = files
        # Reentrant: a generator that was given up may be collected, and let go, while its thread is in here.
        self._lock, self._readers, self._is_let_go = threading.RLock(), 0, False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While the block runs the files stay open: a look into one that was closed would end the process."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        with self._lock:
            if self._is_let_go and more > 0:
                raise BatchError("This index was closed. Ask that of the run that is served now.")
            self._readers += more
            is_last = self._is_let_go and not self._readers
        if is_last:
            self._close()

    def let_go(self) -> None:
        """No new reads; those that are under way are done first. Idempotent."""
        with self._lock:
            is_idle = not self._is_let_go and not self._readers
            self._is_let_go = True
        if is_idle:
            self._close()

    def _close(self) -> None:
        for file in self._files:
            close_file(file)
