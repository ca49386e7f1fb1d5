"""The process that writes the output of all services into their log files.

Started by the supervisor (log_pipe.py), which sends it the pipe of each service as it is started. It has nothing else
to do, so a supervisor that is stopped or hangs does not hold up a service whose pipe is full. It ends when the
supervisor has and all pipes are empty. It needs the standard library alone: it is small, and starts at once.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from infra.log_file import LogFile

BLOCK = 65536
MAX_LINE_BYTES = 2**20
MAX_PIPES = 16
"""Pipes that one message brings at the most."""
GRACE_S = 10.0
"""How long the lines of processes that outlive the supervisor are still written."""


class Output:
    """The output of one process, on its way into a log file."""

    def __init__(self, number: int, reader: int, service: str, file: LogFile, form: str) -> None:
        self.number, self.reader = number, reader
        self._service, self._file, self._form = service, file, form
        self._rest = b""

    def read(self) -> bool:
        """Write what is there; False where the process and all that inherited the pipe have ended."""
        data = os.read(self.reader, BLOCK)
        if self._form == "text":
            self._file.append(data)
            return bool(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES or (not data and self._rest):
            lines, self._rest = [*lines, self._rest], b""
        self._file.append(b"".join(json_line(self._service, line) for line in lines))
        return bool(data)


class LogWriter:
    """Writes until the supervisor has ended and all pipes are empty."""

    def __init__(self, supervisor: socket.socket) -> None:
        self._supervisor = supervisor
        self._selector = selectors.DefaultSelector()
        self._selector.register(supervisor, selectors.EVENT_READ)
        self._files: dict[str, LogFile] = {}
        self._outputs: dict[int, Output] = {}
        self._received, self._pipes = b"", list[int]()
        self._until = float("inf")

    def run(self) -> None:
        """What processes write that outlive the supervisor for longer than the grace is not."""
        while self._outputs or self._until == float("inf"):
            left = self._until - time.monotonic()
            if left <= 0:
                return
            for key, _ in self._selector.select(None if left == float("inf") else left):
                if key.fileobj is self._supervisor:
                    self._receive()
                elif not self._outputs[key.fd].read():
                    self._end(self._outputs.pop(key.fd))

    def _receive(self) -> None:
        """Messages are lines, and each brings one pipe."""
        data = b""
        with suppress(OSError):
            data, pipes, _, _ = socket.recv_fds(self._supervisor, BLOCK, MAX_PIPES)
            self._pipes += pipes
        if not data:
            self._selector.unregister(self._supervisor)
            self._until = time.monotonic() + GRACE_S
            return
        *messages, self._received = (self._received + data).split(b"\n")
        for message in messages:
            self._begin(json.loads(message), self._pipes.pop(0))

    def _begin(self, said: dict[str, str | int], reader: int) -> None:
        path, form = str(said["path"]), str(said["form"])
        file = self._files.setdefault(path, LogFile(Path(path), int(said["max_bytes"]), int(said["keep"]), form))
        output = Output(int(said["number"]), reader, str(said["service"]), file, form)
        self._outputs[reader] = output
        self._selector.register(reader, selectors.EVENT_READ)

    def _end(self, output: Output) -> None:
        self._selector.unregister(output.reader)
        os.close(output.reader)
        with suppress(OSError):  # the supervisor has ended
            self._supervisor.sendall(b"%d\n" % output.number)


def json_line(service: str, line: bytes) -> bytes:
    """A line of a service as a line of JSON: as it is where it is an object already, else as the event of one."""
    if line.startswith(b"{"):
        with suppress(ValueError, RecursionError):  # nested too deeply for us
            if isinstance(entry := json.loads(line), dict):
                return json.dumps({**entry, "service": entry.get("service", service)}).encode() + b"\n"
    entry = {
        "event": line.decode("utf-8", errors="replace").rstrip("\r"),
        "service": service,
        "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    return json.dumps(entry).encode() + b"\n"


def main(descriptor: int) -> None:
    """The program, with the socket to the supervisor. Signals to all are for the supervisor: this ends after that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    LogWriter(socket.socket(fileno=descriptor)).run()
