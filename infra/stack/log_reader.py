"""Read the services' log files for `tidemark logs`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TextIO

from infra.errors import InfraError
from infra.home import Home
from infra.logs import last_lines


def print_logs(root: Path, service: str | None, lines: int, out: TextIO | None = None) -> None:
    """The last lines of one service, or of each, under its name."""
    out = out or sys.stdout
    for path in _files(root, service):
        if service is None:
            out.write(f"==> {path.stem} <==\n")
        out.writelines(f"{line}\n" for line in last_lines(path, lines))


def follow_logs(root: Path, service: str | None, out: TextIO | None = None, pause_s: float = 0.2) -> None:
    """Print what is appended, until interrupted. A file that shrinks was rotated: it is read from its start."""
    out = out or sys.stdout
    positions = {path: path.stat().st_size for path in _files(root, service)}
    while True:
        for path, position in positions.items():
            size = path.stat().st_size
            if size < position:
                position = 0
            if size > position:
                with path.open("rb") as file:
                    file.seek(position)
                    text = file.read(size - position).decode("utf-8", errors="replace")
                prefix = "" if service else f"{path.stem}: "
                out.writelines(f"{prefix}{line}\n" for line in text.splitlines())
                out.flush()
            positions[path] = size
        time.sleep(pause_s)


def _files(root: Path, service: str | None) -> list[Path]:
    logs = Home(root).logs
    found = sorted(logs.glob("*.log"))
    if service is None:
        if not found:
            raise InfraError(f"There are no logs in {str(logs)!r}: nothing was ever started on this home.")
        return found
    if logs / f"{service}.log" not in found:
        known = ", ".join(path.stem for path in found) or "none yet"
        raise InfraError(f"There is no log of {service!r} in {str(logs)!r}. There are logs of: {known}.")
    return [logs / f"{service}.log"]
