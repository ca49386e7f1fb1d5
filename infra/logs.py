"""Log entries: an event name and values, one line each; and the end of the files that they are written to."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import structlog

from infra.log_file import LogFile

BLOCK = 65536


def configure_logging(level: str, stream: TextIO | None = None, form: str = "text") -> None:
    """Write entries of `level` and above, like `2026-11-16T02:40:11Z [info] ready service=kafka seconds=3.1`.

    With the form `json` each is an object: `{"event": "ready", "service": "kafka", ..., "level": "info", ...}`.
    """
    stream = stream or sys.stderr
    last: Any = structlog.dev.ConsoleRenderer(colors=stream.isatty(), pad_event_to=0, pad_level=False, sort_keys=False)
    if form == "json":
        last = structlog.processors.JSONRenderer(default=str)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )


class LogStream(io.TextIOBase):
    """A text stream that ends in a log file, for `configure_logging`."""

    def __init__(self, file: LogFile) -> None:
        self._log = file

    def write(self, text: str) -> int:
        """Append a text."""
        self._log.append(text.encode("utf-8", errors="replace"))
        return len(text)


def last_lines(log_file: Path, count: int) -> list[str]:
    """The end of a log, read backwards so that a long log costs no more than a short one; [] where there is no file.

    Where a log was just rotated, its end is in the file before.
    """
    found: list[str] = []
    for path in (log_file, log_file.with_name(f"{log_file.name}.1")):
        if len(found) < count and path.exists():
            found = [*_last_lines_of(path, count - len(found)), *found]
    return found


def _last_lines_of(path: Path, count: int) -> list[str]:
    with path.open("rb") as file:
        position, tail = file.seek(0, os.SEEK_END), b""
        while position > 0 and tail.count(b"\n") <= count:
            start = max(0, position - BLOCK)
            file.seek(start)
            tail = file.read(position - start) + tail
            position = start
    return [line.decode("utf-8", errors="replace").rstrip("\r") for line in tail.splitlines()[-count:]]
