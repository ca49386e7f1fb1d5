"""Keep the services of one home running: start them in order, watch them, restart them, stop them.

One thread, one loop: every tick checks each child once. Children are leashed to this process (`leash.py`), so
they end with it, however it ends; what a crash of the machine's user space could still leave behind is found by its
recorded process id and start time at the next start.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

import psutil
import structlog

from infra.backoff import pause_after
from infra.errors import InfraError, ServiceFailed
from infra.home import Home, read_json, write_json
from infra.logs import last_lines, rotate
from infra.stack.leash import leashed
from infra.stack.service import Service, State
from infra.version import VERSION

TICK_S = 0.05
CHECK_EVERY_S = {State.STARTING: 0.1, State.READY: 5.0, State.UNRESPONSIVE: 1.0}
CHECKS_UNTIL_UNRESPONSIVE = 2
ROTATE_EVERY_S = 30.0
FIRST_BACKOFF_S = 0.5
LEFTOVER_GONE_S = 10.0
STEADY_AFTER_S = 30.0
"""A service that was ready for this long starts its back-off from the beginning when it dies."""
MAX_DOUBLINGS = 3
"""Of the time to become ready, for a service that was killed because it was not."""
TRIES_BEFORE_GIVING_UP = 3
"""Deaths before a service was ever ready, after which `up` fails. A service that was ready is always restarted."""

log = structlog.get_logger()


@dataclass
class Child:
    """A service at run time."""

    service: Service
    state: State = State.WAITING
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    ready_at: float = 0.0
    was_ready: bool = False
    deaths_in_row: int = 0
    restarts: int = 0
    slow_starts: int = 0
    failed_checks: int = 0
    message: str = ""
    problems: str = ""  # of one that is ready
    check: Future[str | None] | None = None
    next_at: float = 0.0  # monotonic: of the next check, or of the next start while pausing

    @property
    def is_whole(self) -> bool:
        """Whether it is ready with everything that it does."""
        return self.state is State.READY and not self.problems

    @property
    def is_given_up(self) -> bool:
        """Whether `up` no longer waits for it: it failed again and again, and the others can do without."""
        is_tried = not self.was_ready and self.deaths_in_row >= TRIES_BEFORE_GIVING_UP
        return is_tried and not self.service.is_needed

    def describe(self) -> dict[str, Any]:
        """This child's line in the status file."""
        pid = self.process.pid if self.process and self.state not in (State.PAUSING, State.STOPPED) else None
        return {
            "name": self.service.name,
            "state": str(self.state),
            "address": self.service.address,
            "pid": pid,
            "created": created_at(pid),
            "restarts": self.restarts,
            "message": self.message or self.problems,
        }


class Supervisor:
    """Runs the services of one home until it is stopped. The caller holds the home's lock."""

    def __init__(
        self,
        home: Home,
        services: list[Service],
        *,
        start_timeout_s: float,
        stop_timeout_s: float,
        backoff_max_s: float,
        log_max_mb: int,
        on_change: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.home = home
        self.children = [Child(service) for service in services]
        self.start_timeout_s = start_timeout_s
        self.stop_timeout_s = stop_timeout_s
        self.backoff_max_s = backoff_max_s
        self.log_max_bytes = log_max_mb * 2**20
        self.on_change = on_change or (lambda _status: None)
        self._is_stopping = False
        self._shown: dict[str, Any] = {}
        self._has_warned = False
        self._began = time.time()
        self._next_rotation = 0.0
        self._checks = ThreadPoolExecutor(max_workers=max(1, len(services)), thread_name_prefix="check")

    def stop(self) -> None:
        """Ask the loop to end, at its next tick; safe from a signal handler or another thread.

        Only a flag: an Event's lock could be held by the very thread that the signal interrupted.
        """
        self._is_stopping = True

    def run(self) -> None:
        """Start everything and watch it until `stop`. Whatever ends this, no child is left."""
        try:
            self._publish()  # at once: preparing a new home takes seconds, and `tidemark down` must find us
            while not self._is_stopping:
                for child in self.children:
                    self._advance(child, time.monotonic())
                self._rotate_logs()
                self._publish()
                time.sleep(TICK_S)
        except ServiceFailed as error:
            self._publish(error=str(error))
            raise
        finally:
            self._stop_all()
            self._checks.shutdown(wait=False, cancel_futures=True)

    def status(self, error: str = "") -> dict[str, Any]:
        """The content of the status file."""
        return {
            "version": VERSION,
            "home": str(self.home.root),
            "pid": os.getpid(),
            "created": created_at(os.getpid()),
            "began": self._began,
            "ready": all(child.is_whole for child in self.children),
            "settled": all(child.state is State.READY or child.is_given_up for child in self.children),
            "stopping": self._is_stopping,
            "error": error,
            "services": [child.describe() for child in self.children],
        }

    # ---- one child, one tick -------------------------------------------------

    def _advance(self, child: Child, now: float) -> None:
        if child.state is State.WAITING:
            if all(other.state is State.READY for other in self.children if other.service.name in child.service.after):
                self._start(child)
        elif child.state is State.PAUSING:
            if now >= child.next_at:
                self._start(child)
        elif child.process is not None and child.process.poll() is not None:
            self._bury(child, now, f"ended with {_exit_text(child.process.returncode)}")
        elif child.state is State.STARTING and now - child.started_at > (patience_s := self._patience_s(child)):
            self._kill(child)
            child.slow_starts += 1
            self._bury(child, now, f"not ready after {patience_s:g} s: {child.message}")
        else:
            self._check(child, now)

    def _patience_s(self, child: Child) -> float:
        """How long a child may take to be ready: twice as long where it was too slow the last time."""
        return self.start_timeout_s * float(2 ** min(child.slow_starts, MAX_DOUBLINGS))

    def _start(self, child: Child) -> None:
        """Start a child. A failure to do so, for example a full disk, counts as its death: it pauses and retries."""
        child.started_at = time.monotonic()
        try:
            child.service.prepare()
            child.process = self._spawn(child.service)
        except (OSError, InfraError, subprocess.SubprocessError) as error:
            self._bury(child, time.monotonic(), f"could not be started: {error}")
            return
        child.state, child.started_at = State.STARTING, time.monotonic()
        child.check, child.next_at, child.failed_checks = None, 0.0, 0
        log.info("started", service=child.service.name, pid=child.process.pid)

    def _spawn(self, service: Service) -> subprocess.Popen[bytes]:
        with self.home.log_file(service.name).open("ab") as output:
            return subprocess.Popen(
                leashed(service.command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=service.folder or self.home.root,
                env={**os.environ, **service.environment},
                start_new_session=True,  # Ctrl-C reaches only us: we stop the children in order
            )

    def _check(self, child: Child, now: float) -> None:
        if child.check is None:
            if now >= child.next_at:
                child.check = self._checks.submit(child.service.check)
            return
        if not child.check.done():
            return
        error = child.check.exception()
        missing = f"{type(error).__name__}: {error}" if error else child.check.result()
        child.check = None
        if missing is None or not child.is_given_up:  # the reason of the failures is more useful than "starting"
            child.message = missing or ""
        if missing is None:
            self._note_ready(child, now)
            child.problems = child.service.problems()
        else:
            child.failed_checks += 1
            if child.state is State.READY and child.failed_checks >= CHECKS_UNTIL_UNRESPONSIVE:
                child.state = State.UNRESPONSIVE
                log.warning("unresponsive", service=child.service.name, missing=missing)
        is_doubtful = child.state is State.READY and child.failed_checks
        child.next_at = now + (1.0 if is_doubtful else CHECK_EVERY_S[child.state])

    def _note_ready(self, child: Child, now: float) -> None:
        if child.state is not State.READY:
            log.info("ready", service=child.service.name, seconds=round(now - child.started_at, 1))
            child.ready_at = now
        child.state, child.was_ready, child.failed_checks = State.READY, True, 0

    def _bury(self, child: Child, now: float, reason: str) -> None:
        """A child died: kill the rest of its process group, then pause before the next start, longer each time."""
        reason = f"{reason}. {recorded}" if (recorded := child.service.last_error()) else reason
        self._kill(child)
        child.process = None  # its number may soon be another process's
        steady = child.state in (State.READY, State.UNRESPONSIVE) and now - child.ready_at > STEADY_AFTER_S
        child.deaths_in_row = 1 if steady else child.deaths_in_row + 1
        log.warning("died", service=child.service.name, reason=reason, deaths_in_row=child.deaths_in_row)
        if child.service.is_needed and not child.was_ready and child.deaths_in_row >= TRIES_BEFORE_GIVING_UP:
            raise ServiceFailed(_failure_text(child.service.name, reason, self.home))
        pause_s = pause_after(child.deaths_in_row, FIRST_BACKOFF_S, self.backoff_max_s)
        child.state, child.next_at, child.problems = State.PAUSING, now + pause_s, ""
        child.restarts += 1
        child.message = reason
        child.check = None

    def _kill(self, child: Child) -> None:
        if child.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()

    # ---- all children --------------------------------------------------------

    def _stop_all(self) -> None:
        """Stop in the reverse of the start order: no service loses one that it depends on while it runs."""
        self._is_stopping = True
        for child in reversed(self.children):
            if child.process is not None and child.process.poll() is None:
                child.state = State.STOPPING
                self._publish_if_possible()
                child.process.terminate()
                try:
                    child.process.wait(self.stop_timeout_s)
                except subprocess.TimeoutExpired:
                    log.warning("killed", service=child.service.name, after_seconds=self.stop_timeout_s)
            self._kill(child)
            child.state = State.STOPPED
        log.info("stopped")
        self._publish_if_possible()

    def _publish_if_possible(self) -> None:
        """While stopping, a status that cannot be written must not keep a child from stopping cleanly."""
        with suppress(Exception):
            self._publish()

    def _publish(self, error: str = "") -> None:
        status = self.status(error or self._shown.get("error", ""))
        if status == self._shown:
            return
        try:
            write_json(self.home.status_file, status)
        except OSError as problem:  # a full disk is no reason to stop the services; the next tick tries again
            if not self._has_warned:
                log.warning("status_not_written", reason=str(problem))
            self._has_warned = True
            return
        self._has_warned = False
        self._shown = status
        self.on_change(status)

    def _rotate_logs(self) -> None:
        if time.monotonic() < self._next_rotation:
            return
        self._next_rotation = time.monotonic() + ROTATE_EVERY_S
        for path in self.home.logs.glob("*.log"):
            with suppress(OSError):  # a full disk is no reason to stop the services; the next turn tries again
                rotate(path, self.log_max_bytes)


def stop_on_signals(supervisor: Supervisor) -> None:
    """Let SIGINT, SIGTERM and SIGHUP stop the supervisor cleanly."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        supervisor.stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)


def end_leftovers(home: Home) -> list[str]:
    """Kill what an earlier supervisor of this home left running, and wait until it is gone.

    Returns the names of the services. The caller holds the home's lock.
    """
    status = read_json(home.status_file) or {}
    ended = []
    for service in status.get("services", []):
        for process in _left_of(service["pid"], service.get("created"), home):
            with suppress(psutil.Error):
                process.kill()
            _wait_until_gone(process.pid)
            ended.append(service["name"])
            log.warning("ended_leftover", service=service["name"], pid=process.pid)
    return ended


def _left_of(leader: int | None, created: float | None, home: Home) -> list[psutil.Process]:
    """What still runs of the session that a service led: itself, and a child of it such as Spark's JVM.

    A pid that was given to another process is recognised by its start time. Where the leader is gone, only those
    processes of its session are ours that were started for this home.
    """
    if leader is None or (psutil.pid_exists(leader) and not is_same_process(leader, created)):
        return []
    found = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if process.pid == leader or (os.getsid(process.pid) == leader and _is_of(process, home)):
                found.append(process)
    return found


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + LEFTOVER_GONE_S
    while created_at(pid) is not None and time.monotonic() < deadline:
        time.sleep(TICK_S)


def _is_of(process: psutil.Process, home: Home) -> bool:
    return process.environ().get("TIDEMARK_HOME") == str(home.root)


def is_same_process(pid: int, created: float | None) -> bool:
    """Whether `pid` is still the process that was started at `created`, not another one with its number."""
    now = created_at(pid)
    return now is not None and created is not None and abs(now - created) < 1


def created_at(pid: int | None) -> float | None:
    """When a process was started, in seconds since 1970; None where none of that number runs."""
    if pid is None:
        return None
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else round(process.create_time(), 2)
    except psutil.Error:
        return None


def _exit_text(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _failure_text(name: str, reason: str, home: Home) -> str:
    lines = last_lines(home.log_file(name), 15)
    tail = "\n".join([f" The end of {home.log_file(name)}:", *(f"  | {line}" for line in lines)]) if lines else ""
    return f"{name} did not start: {reason}, {TRIES_BEFORE_GIVING_UP} times. Everything was stopped again.{tail}"
