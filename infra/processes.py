"""The frame of our processes: settings, logs, signals, heartbeat, status file, metrics port and exit code."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

import structlog

from infra.errors import is_temporary
from infra.home import Home
from infra.logs import configure_logging
from infra.process_status import ProcessStatus, StatusFile, status_path
from infra.settings import Settings, load_settings

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

log = structlog.get_logger()


class Worker:
    """What a process needs around its work: a flag that a signal sets, and a status file that it keeps fresh.

    The main thread calls `wait` between heartbeats. Other threads watch `stopping`, and may call `stop`.
    """

    def __init__(self, settings: Settings, name: str) -> None:
        self.settings, self.name = settings, name
        self.stopping = threading.Event()
        self._status = StatusFile(status_path(settings, name))
        self._is_signalled = False
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    @property
    def is_stopping(self) -> bool:
        """Whether a signal arrived, or a part of the process asked for the end."""
        return self._is_signalled or self.stopping.is_set()

    def stop(self) -> None:
        """End the process's work."""
        self.stopping.set()
        self._wake_up()

    def wait(self, seconds: float) -> bool:
        """Wait until the next heartbeat is due, or the process is to stop; returns whether it is to stop."""
        if not self.is_stopping:
            select.select([self._woken], [], [], seconds)
        if self._is_signalled:
            self.stopping.set()
        return self.is_stopping

    def write_status(self, status: ProcessStatus) -> None:
        """Tell the supervisor and `tidemark status` how the process is. An unchanged status is not written again."""
        self._status.write(status)

    def show_life(self) -> None:
        """Between long steps of one heartbeat, so that the supervisor does not take us for hung."""
        self._status.show_life()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Stop at SIGTERM and SIGINT while the context lasts. For the main thread."""
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def metrics(self, port: int, *collectors: Collector) -> Iterator[str]:
        """Serve the process's metrics on a loopback port while the context lasts; gives the address."""
        from infra.metrics import new_registry, serve_metrics
        from infra.stack.ports import LOOPBACK

        registry = new_registry(self.name)
        for collector in collectors:
            registry.register(collector)
        with serve_metrics(registry, LOOPBACK, port) as address:
            yield address

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        # Only a flag and a byte: the interrupted thread may hold any lock, also that of `stopping`.
        self._is_signalled = True
        self._wake_up()

    def _wake_up(self) -> None:
        with suppress(BlockingIOError):  # full of earlier calls
            os.write(self._wake, b"x")


def run_worker(name: str, work: Callable[[Worker], None]) -> int:
    """Do `work` until it returns (exit code 0) or fails; the status file then names the error.

    An error with an `exit_code` is one that a person can fix: its sentence is logged, and its code returned.
    Any other is a defect or a broken machine: it is logged with its traceback, and the code is 1.
    """
    settings = load_settings()
    configure_logging(settings.log_level, form=settings.log_format)
    worker = Worker(settings, name)
    try:
        Home(settings.home).prepare()
        with worker.signals():
            work(worker)
    except Exception as error:
        with suppress(OSError):  # a full disk: the log has the error
            worker.write_status(ProcessStatus(time.time(), str(error), is_temporary(error)))
        if (exit_code := getattr(error, "exit_code", None)) is None:
            log.exception("failed")
            return 1
        log.error("refused", reason=str(error))  # noqa: TRY400  a sentence for a person, no traceback
        return int(exit_code)
    return 0
