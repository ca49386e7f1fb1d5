"""Files of log lines, which lose none when they are rotated. Only the standard library: the log writer imports it."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path

MAX_UNWRITTEN_BYTES = 2**20
"""What is kept of a log in memory while its disk is full; the rest is counted."""


class LogFile:
    """A file that whole lines are appended to, by one process. It is renamed when it has grown: no line is lost.

    `x.log` becomes `x.log.1`, that `x.log.2`, and so on; beyond `keep` the oldest goes. No line is in two files.
    While its disk is full, `MAX_UNWRITTEN_BYTES` wait in memory; a line then says how many others are missing.
    """

    def __init__(self, path: Path, max_bytes: int, keep: int, form: str = "text") -> None:
        self.path, self.max_bytes, self.keep, self.form = path, max_bytes, keep, form
        self._lock = threading.Lock()
        self._unwritten = b""
        self._lost_lines = 0
        self._ends_line = True

    def append(self, data: bytes) -> None:
        """Append bytes; the last line may go on with the next call. Never raises: a log must not stop a service."""
        with self._lock:
            self._unwritten += data
            with suppress(OSError):
                self._write_out()
            self._drop_surplus()

    def rotate_if_grown(self) -> None:
        """Rename a file that others write. Who has it open goes on writing there, and no line is lost."""
        with self._lock, suppress(OSError):
            if self._size() >= self.max_bytes:
                self._rotate()

    def _write_out(self) -> None:
        """Opened for each piece: somebody may have moved or removed the file, and nobody has to close it."""
        while self._unwritten:
            if self._ends_line and self._size() >= self.max_bytes:
                self._rotate()
            with self.path.open("ab", buffering=0) as file:
                if self._lost_lines and self._ends_line:
                    note = f"{self._lost_lines} lines are missing here: the disk was full"
                    file.write(f"{json.dumps({'event': note}) if self.form == 'json' else note}\n".encode())
                    self._lost_lines = 0
                part = self._next_part()
                written = file.write(part)
            self._unwritten = self._unwritten[written:]
            self._ends_line = part[:written].endswith(b"\n")

    def _next_part(self) -> bytes:
        """As many whole lines as there is room for, at least one; else the beginning of a line."""
        waiting, room = self._unwritten, max(1, self.max_bytes - self._size())
        end = waiting.rfind(b"\n", 0, room) + 1 or waiting.find(b"\n") + 1 or len(waiting)
        return waiting[:end]

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def _rotate(self) -> None:
        # From the oldest on. A crash in between leaves a gap in the numbers, and every line in a file.
        for number in range(self.keep, 0, -1):
            older = self._older(number)
            source = self._older(number - 1) if number > 1 else self.path
            with suppress(FileNotFoundError):
                source.replace(older)

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _drop_surplus(self) -> None:
        if len(self._unwritten) > MAX_UNWRITTEN_BYTES:
            lines = self._unwritten.splitlines(keepends=True)
            kept: list[bytes] = []
            size = 0
            for line in reversed(lines):
                size += len(line)
                if size > MAX_UNWRITTEN_BYTES // 2:
                    break
                kept.append(line)
            self._lost_lines += len(lines) - len(kept)
            self._unwritten = b"".join(reversed(kept))
            self._ends_line = True
