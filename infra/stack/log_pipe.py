"""The output of a service on its way into its log file: a pipe, and a thread of the supervisor that empties it.

A service that wrote into the file itself would hold it open, and no rotation could be sure of its last lines.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from contextlib import suppress
from datetime import UTC, datetime

from infra.logs import LogFile

PIPE_BYTES = 2**20
"""How much a service can write before it waits for us; the most that Linux gives to everybody."""
BLOCK = 65536
MAX_LINE_BYTES = 2**20


class LogPipe:
    """A pipe into a log file. Give `writer` to a process and call `begin`, which closes it here."""

    def __init__(self, service: str, file: LogFile, form: str) -> None:
        self._service, self._file, self._form = service, file, form
        with suppress(OSError):  # a full disk
            file.path.touch()  # also of a service that says nothing there is a log
        self._reader, self.writer = os.pipe()
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with suppress(OSError):  # the user has many pipes of that size already
                fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._thread = threading.Thread(target=self._empty, name=f"log-{service}", daemon=True)

    def begin(self) -> None:
        """Read until the process and all that inherited the pipe have ended."""
        os.close(self.writer)
        self._thread.start()

    def drain(self, timeout_s: float) -> None:
        """Wait until everything is in the file: called after the process has ended."""
        self._thread.join(timeout_s)

    def _empty(self) -> None:
        rest = b""
        try:
            while data := os.read(self._reader, BLOCK):
                if self._form == "text":
                    self._file.append(data)
                    continue
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    lines, rest = [*lines, rest], b""
                self._file.append(b"".join(json_line(self._service, line) for line in lines))
        finally:
            if rest:
                self._file.append(json_line(self._service, rest))
            os.close(self._reader)


def json_line(service: str, line: bytes) -> bytes:
    """A line of a service as a line of JSON: as it is where it is an object already, else as the event of one."""
    if line.startswith(b"{"):
        with suppress(ValueError):
            if isinstance(entry := json.loads(line), dict):
                return json.dumps({**entry, "service": entry.get("service", service)}).encode() + b"\n"
    entry = {
        "event": line.decode("utf-8", errors="replace").rstrip("\r"),
        "service": service,
        "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    return json.dumps(entry).encode() + b"\n"
