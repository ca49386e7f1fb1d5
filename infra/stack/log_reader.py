"""Read the services' log files for `tidemark logs`."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from infra.errors import InfraError
from infra.home import Home
from infra.logs import last_lines


def print_logs(
    root: Path, service: str | None, lines: int, out: TextIO | None = None, *, as_json: bool = False
) -> None:
    """The last lines of one service, or of each, under its name; or each as an object with both."""
    out = out or sys.stdout
    for path in _files(root, service):
        if service is None and not as_json:
            out.write(f"==> {path.stem} <==\n")
        for line in last_lines(path, lines):
            out.write(f"{_json(path.stem, line) if as_json else line}\n")


def follow_logs(
    root: Path, service: str | None, out: TextIO | None = None, pause_s: float = 0.2, *, as_json: bool = False
) -> None:
    """Print what is appended, until interrupted. Of a file that is rotated, the end is printed too."""
    out = out or sys.stdout
    with ExitStack() as held:
        followed = [_Followed(path) for path in _files(root, service)]
        for each in followed:
            held.callback(each.close)
        while True:
            for each in followed:
                name = each.path.stem
                for line in each.new_lines():
                    prefix = "" if service else f"{name}: "
                    out.write(f"{_json(name, line)}\n" if as_json else f"{prefix}{line}\n")
                out.flush()
            time.sleep(pause_s)


class _Followed:
    """A log that is read as it grows. It stays open when it is renamed, until its end was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb")
        self._file.seek(0, os.SEEK_END)
        self._rest = b""

    def new_lines(self) -> list[str]:
        is_rotated = self._is_rotated()  # asked first: what is written until then is in the old file
        data = self._file.read()
        if is_rotated:
            self._file.close()
            self._file = self.path.open("rb")
            data += self._file.read()
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode("utf-8", errors="replace").rstrip("\r") for line in lines]

    def close(self) -> None:
        self._file.close()

    def _is_rotated(self) -> bool:
        try:
            now = self.path.stat()
        except FileNotFoundError:  # between two renames
            return False
        return not os.path.samestat(os.fstat(self._file.fileno()), now) or now.st_size < self._file.tell()


def _json(service: str, line: str) -> str:
    return json.dumps({"service": service, "line": line})


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
