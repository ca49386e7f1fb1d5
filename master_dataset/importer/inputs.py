"""The files to import: plain, gzip or standard input, opened so that each byte that is read is also hashed."""

from __future__ import annotations

import gzip
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, cast

from master_dataset.importer.errors import UnreadableInput, UnusableInput
from master_dataset.importer.lines import CHUNK_BYTES

STDIN = "-"
GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Input:
    """One file of the command. `path` is None for what can be read only once, like standard input."""

    name: str
    path: Path | None
    size: int | None = None
    mtime_ns: int = 0
    is_stdin: bool = False


def find_input(name: str) -> Input:
    """Look at a file, or refuse it before anything is sent."""
    if name == STDIN:
        return Input("standard input", None, is_stdin=True)
    path = Path(os.path.abspath(Path(name).expanduser()))  # noqa: PTH100  resolve() would follow the user's links
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise UnusableInput(f"{name!r} is a folder. Name the files in it, for example {name.rstrip('/')}/*.log.")
        if not stat.S_ISREG(found.st_mode):
            return Input(name, None)
        path.open("rb").close()
    except OSError as error:
        raise UnusableInput(f"{name!r} cannot be read: {error.strerror}.") from None
    return Input(name, path, found.st_size, found.st_mtime_ns)


class HashedStream:
    """The uncompressed bytes of a file; knows how many were read and their hash."""

    def __init__(self, name: str, raw: BufferedReader) -> None:
        self._name = name
        self._raw = raw
        self._is_file = raw.seekable()
        self.is_gzip = raw.peek(2)[:2] == GZIP_MAGIC
        self._stream: BinaryIO | gzip.GzipFile = gzip.GzipFile(fileobj=raw) if self.is_gzip else raw
        self._hash = blake2b(digest_size=16)
        self._head = b""
        self.bytes_read = 0

    def peek(self) -> bytes:
        """The first chunk; it will be read again."""
        self._head = self._head or self._next(CHUNK_BYTES)
        return self._head

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, b"" at the end."""
        chunk, self._head = self._head or self._next(size), b""
        self._hash.update(chunk)
        self.bytes_read += len(chunk)
        return chunk

    def digest(self) -> str:
        """The hash of all bytes that were read so far."""
        return self._hash.hexdigest()

    def progress_bytes(self) -> int:
        """How far we are in the file as it lies on the disk, compressed or not."""
        return self._raw.tell() if self._is_file else self.bytes_read

    def _next(self, size: int) -> bytes:
        try:
            # A pipe gives what it has; waiting for a whole chunk would hold back its lines.
            return self._stream.read(size) if self._is_file else self._stream.read1(size)  # type: ignore[union-attr]
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UnreadableInput(
                f"{self._name}: the gzip data are damaged after {self.bytes_read} uncompressed bytes: {error}. "
                "The lines before were imported. Put the whole file there and run the same command again."
            ) from None
        except OSError as error:
            raise UnreadableInput(f"{self._name} cannot be read after {self.bytes_read} bytes: {error}.") from None


@contextmanager
def open_input(found: Input) -> Iterator[HashedStream]:
    """Open for one pass."""
    if found.path is None:  # read where it is, once
        with sys.stdin.buffer if found.is_stdin else Path(found.name).open("rb") as raw:
            yield HashedStream(found.name, cast("BufferedReader", raw))
        return
    with found.path.open("rb") as raw:
        yield HashedStream(found.name, raw)


def begins_with(found: Input, size: int, digest: str) -> tuple[bool, bool]:
    """Whether the first `size` uncompressed bytes of a file have this hash, and whether there are more after them."""
    with open_input(found) as stream:
        while stream.bytes_read < size:
            if not stream.read(min(CHUNK_BYTES, size - stream.bytes_read)):
                return False, False
        return stream.digest() == digest, bool(stream.peek())
