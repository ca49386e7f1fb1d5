"""Log entries as an event name and values, one line each, on stderr."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TextIO

import structlog

BLOCK = 65536


def configure_logging(level: str, stream: TextIO | None = None) -> None:
    """Write entries of `level` and above, like `2026-11-16T02:40:11Z [info] ready service=kafka seconds=3.1`."""
    stream = stream or sys.stderr
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=stream.isatty(), pad_event_to=0, pad_level=False, sort_keys=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )


def rotate(log_file: Path, max_bytes: int) -> bool:
    """Copy a large log to `<name>.1` and empty it in place, because its writer keeps the file open for appending."""
    if not log_file.exists() or log_file.stat().st_size <= max_bytes:
        return False
    shutil.copyfile(log_file, log_file.with_name(f"{log_file.name}.1"))
    os.truncate(log_file, 0)
    return True


def last_lines(log_file: Path, count: int) -> list[str]:
    """The end of a log, read backwards so that a long log costs no more than a short one; [] where there is no file."""
    if not log_file.exists():
        return []
    with log_file.open("rb") as file:
        position, tail = file.seek(0, os.SEEK_END), b""
        while position > 0 and tail.count(b"\n") <= count:
            start = max(0, position - BLOCK)
            file.seek(start)
            tail = file.read(position - start) + tail
            position = start
    return [line.decode("utf-8", errors="replace").rstrip("\r") for line in tail.splitlines()[-count:]]
