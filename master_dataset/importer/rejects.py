"""Write refused lines to a file, each as it was, under a line with its reason. Once fixed, the file can be imported."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from master_dataset.errors import InvalidEvent
from master_dataset.importer.errors import UnusableInput
from master_dataset.importer.formats import FormatReader, ImportFormat
from master_dataset.importer.lines import MAX_LINE_BYTES, Line

MARK = b"#refused: "
"""Lines that begin so are left out by every format's import."""
KEPT_BYTES = 1000
"""Of a line above the limit this much is kept."""


class Rejects:
    """The rejects file of a command, or nothing when none was asked for."""

    def __init__(self, path: Path | None, *, go_on: bool) -> None:
        self._context = b""
        self._file: BinaryIO | None = None
        if path is not None:
            try:
                self._file = path.open("ab" if go_on else "wb")
            except OSError as error:
                raise UnusableInput(f"The rejects file {str(path)!r} cannot be written: {error.strerror}.") from None

    def add(self, name: str, line: Line, error: InvalidEvent, reader: FormatReader) -> None:
        """One refused line. A header or directive that it needs to be understood comes before it."""
        if self._file is None:
            return
        if reader.context is not self._context:
            self._context = reader.context
            if reader.format is not ImportFormat.CSV or self._file.tell() == 0:
                self._file.write(self._context + b"\n")
        # On one line, and without double quotes: in CSV an odd one would swallow the line after it.
        reason = " ".join(f"{name} line {line.number}: {error}".replace('"', "'").split())
        self._file.write(MARK + reason.encode(errors="replace") + b"\n")
        raw = line.raw
        if len(raw) > MAX_LINE_BYTES:
            raw = raw[:KEPT_BYTES]
            self._file.write(MARK + f"only its first {KEPT_BYTES} bytes follow".encode() + b"\n")
        self._file.write(raw + b"\n")

    def flush(self) -> None:
        """Hand everything to the operating system. Called before the journal says that these lines are done."""
        if self._file is not None:
            self._file.flush()

    def __enter__(self) -> Rejects:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()
