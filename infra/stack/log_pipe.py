"""The output of services on its way into their log files: pipes, and a process that empties them (log_writer.py).

A service that wrote into the file itself would hold it open, and no rotation could be sure of its last lines. A thread
of the supervisor would stop with it, and a service whose pipe is full waits.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

import structlog

from infra.log_file import LogFile

PIPE_BYTES = 2**20
"""How much a service can write before it waits for the log writer; the most that Linux gives to everybody."""
SEND_S = 1.0
"""How long the log writer may take to receive a pipe before it is replaced."""
BLOCK = 4096
ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from infra.stack.log_writer import main; main(int(sys.argv[2]))"

log = structlog.get_logger()


class LogPipe:
    """A pipe into a log file. Give `writer` to a process, and call `close_writer` then."""

    def __init__(self, number: int, service: str, file: LogFile) -> None:
        self.number, self._service, self._file = number, service, file
        with suppress(OSError):  # a full disk
            file.path.touch()  # also of a service that says nothing there is a log
        self.reader, self.writer = os.pipe()
        """The reader stays open here, too: a service outlives a log writer that was killed."""
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with suppress(OSError):  # the user has many pipes of that size already
                fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    @property
    def message(self) -> bytes:
        """What the log writer needs to know."""
        file = self._file
        said = {
            "number": self.number, "service": self._service, "path": str(file.path), "max_bytes": file.max_bytes,
            "keep": file.keep, "form": file.form,
        }  # fmt: skip
        return json.dumps(said).encode() + b"\n"

    def close_writer(self) -> None:
        """The process has it now."""
        os.close(self.writer)

    def close(self) -> None:
        """The log writer has emptied it, or nobody writes into it any more."""
        os.close(self.reader)


class LogPipes:
    """The pipes of all services, and the process that empties them. For one thread."""

    def __init__(self, stderr: Path) -> None:
        self._stderr = stderr
        self._numbers = count(1)
        self._pipes: dict[int, LogPipe] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._received = b""

    @property
    def pid(self) -> int | None:
        """Of the log writer; None where it does not run."""
        return self._process.pid if self._process is not None else None

    def open(self, service: str, file: LogFile) -> LogPipe:
        """A pipe that is being emptied. OSError where that cannot be."""
        pipe = LogPipe(next(self._numbers), service, file)
        try:
            self.look_after()
            if self._process is None:
                self._start()
            self._send(pipe)
        except OSError:
            pipe.close_writer()
            pipe.close()
            raise
        self._pipes[pipe.number] = pipe
        return pipe

    def look_after(self) -> None:
        """Let go of pipes that are empty for good, and replace a log writer that has ended. OSError where it cannot."""
        self._receive(0)
        if self._process is not None:
            if self._process.poll() is None:
                return
            log.warning("log_writer_ended", exit_code=self._process.returncode)
            self._let_go()
        if self._pipes:
            self._start()
            for pipe in self._pipes.values():
                self._send(pipe)

    def drain(self, pipe: LogPipe, timeout_s: float) -> None:
        """Wait until everything is in the file: called after the process has ended."""
        until = time.monotonic() + timeout_s
        while pipe.number in self._pipes and (left := until - time.monotonic()) > 0:
            with suppress(OSError):
                self.look_after()
            self._receive(min(left, 0.1))
        if self._pipes.pop(pipe.number, None):  # a process that left its group still has it
            pipe.close()

    def close(self, timeout_s: float) -> None:
        """Let the log writer end, which first writes what is left."""
        process, self._process = self._process, None
        for pipe in self._pipes.values():
            pipe.close()
        self._pipes = {}
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout_s)

    def _send(self, pipe: LogPipe) -> None:
        assert self._process is not None and self._socket is not None  # noqa: S101, PT018  it was started
        try:
            socket.send_fds(self._socket, [pipe.message], [pipe.reader])
        except OSError:
            self._process.kill()  # the next one gets all pipes
            raise

    def _start(self) -> None:
        """In a session of its own, so that Ctrl-C does not reach it, and without the secrets of the environment."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                with self._stderr.open("ab") as stderr:
                    self._process = subprocess.Popen(
                        [sys.executable, "-I", "-S", "-X", "utf8", "-c", PROGRAM, str(ROOT), str(theirs.fileno())],
                        stdin=subprocess.DEVNULL,
                        stdout=stderr,
                        stderr=stderr,
                        env={},
                        pass_fds=[theirs.fileno()],
                        start_new_session=True,
                    )
            except OSError:
                ours.close()
                raise
        ours.settimeout(SEND_S)
        self._socket, self._received = ours, b""
        log.info("started", service="log writer", pid=self._process.pid)

    def _receive(self, timeout_s: float) -> None:
        """The numbers of pipes that are empty for good."""
        if self._socket is None:
            return
        self._socket.settimeout(timeout_s)
        try:
            *numbers, self._received = (self._received + self._socket.recv(BLOCK)).split(b"\n")
        except OSError:  # nothing came, or the log writer has ended
            return
        finally:
            self._socket.settimeout(SEND_S)
        for number in numbers:
            if pipe := self._pipes.pop(int(number), None):
                pipe.close()

    def _let_go(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._process, self._socket = None, None
