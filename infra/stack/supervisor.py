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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

import structlog

from infra.backoff import pause_after
from infra.errors import InfraError, ServiceFailed
from infra.home import Home, write_json
from infra.log_file import LogFile
from infra.logs import last_lines
from infra.settings import Settings
from infra.stack.child import TRIES_BEFORE_GIVING_UP, Cause, Child, End, exit_text
from infra.stack.leash import leashed
from infra.stack.leftovers import created_at
from infra.stack.log_pipe import LogPipe, LogPipes
from infra.stack.restart_requests import forget_requests, take_requests
from infra.stack.service import Service, State
from infra.stack.vital_signs import Look, Vitality, look_at
from infra.version import VERSION

TICK_S = 0.05
CHECK_EVERY_S = {State.STARTING: 0.1, State.READY: 5.0, State.UNRESPONSIVE: 1.0}
CHECKS_UNTIL_UNRESPONSIVE = 2
ROTATE_EVERY_S = 30.0
OWN_LOG = "supervisor"
FIRST_BACKOFF_S = 0.5
STEADY_AFTER_S = 30.0
"""A service that was ready for this long starts its back-off from the beginning when it dies."""
MAX_DOUBLINGS = 3
"""Of the time to become ready, for a service that was killed because it was not."""
WORKING_FACTOR = 5
"""How much longer than others a service may be silent that works silently, while it works."""
GONE_S = 5.0
"""How long we wait for a process after SIGKILL. One that waits for a broken disk may never go."""
DRAIN_S = 1.0
"""How long we wait for the last lines of a process that has ended."""

log = structlog.get_logger()


@dataclass(frozen=True)
class Limits:
    """Times in seconds and sizes that a supervisor keeps to."""

    start_timeout_s: float
    stop_timeout_s: float
    backoff_max_s: float
    hang_timeout_s: float = 0.0
    """0: nothing is killed because it hangs."""
    log_max_mb: int = 20
    log_keep_files: int = 5
    log_form: str = "text"

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """As the settings give them."""
        return cls(
            start_timeout_s=settings.start_timeout_s,
            stop_timeout_s=settings.stop_timeout_s,
            backoff_max_s=settings.restart_backoff_max_s,
            hang_timeout_s=settings.hang_timeout_s,
            log_max_mb=settings.log_max_mb,
            log_keep_files=settings.log_keep_files,
            log_form=settings.log_format,
        )

    def log_file(self, home: Home, service: str) -> LogFile:
        """The log of a service, or of the supervisor itself."""
        return LogFile(home.log_file(service), self.log_max_mb * 2**20, self.log_keep_files, self.log_form)


class Supervisor:
    """Runs the services of one home until it is stopped. The caller holds the home's lock."""

    def __init__(
        self,
        home: Home,
        services: list[Service],
        limits: Limits,
        on_change: Callable[[dict[str, Any]], None] | None = None,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        self.home = home
        self.children = [Child(service) for service in services]
        self.limits = limits
        self.on_change = on_change or (lambda _status: None)
        self.on_tick = on_tick
        self._is_stopping = False
        self._shown: dict[str, Any] = {}
        self._has_warned = False
        self._began = time.time()
        self._last_tick: float | None = None
        self._next_rotation = 0.0
        self._logs = {service.name: limits.log_file(home, service.name) for service in services}
        self._pipes: dict[str, LogPipe] = {}
        self._log_pipes = LogPipes(home.log_file(OWN_LOG))
        self._checks = ThreadPoolExecutor(max_workers=max(1, len(services)), thread_name_prefix="check")

    def stop(self) -> None:
        """Ask the loop to end, at its next tick; safe from a signal handler or another thread.

        Only a flag: an Event's lock could be held by the very thread that the signal interrupted.
        """
        self._is_stopping = True

    def run(self) -> None:
        """Start everything and watch it until `stop`. Whatever ends this, no child is left."""
        try:
            forget_requests(self.home)  # they were for a supervisor before us
            self._publish()  # at once: preparing a new home takes seconds, and `tidemark down` must find us
            while not self._is_stopping:
                self._pass_time(time.monotonic())
                for request in take_requests(self.home):
                    self._restart(request.service, request.id)
                for child in self.children:
                    self._advance(child, time.monotonic())
                self._publish()
                self._look_after_logs()
                self._rotate_others(time.monotonic())
                self.on_tick()
                time.sleep(TICK_S)
        except ServiceFailed as error:
            self._publish(error=str(error))
            raise
        finally:
            self._stop_all()
            self._log_pipes.close(GONE_S)
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

    def _look_after_logs(self) -> None:
        """A log writer that cannot be replaced now, for example for lack of memory, is replaced at a later tick."""
        with suppress(OSError):
            self._log_pipes.look_after()

    def _rotate_others(self, now: float) -> None:
        """Logs that are not written by us: of commands, such as batch runs, and of services that no longer run."""
        if now >= self._next_rotation:
            self._next_rotation = now + ROTATE_EVERY_S
            for path in self.home.logs.glob("*.log"):
                if path.stem not in self._logs and path.stem != OWN_LOG:
                    self.limits.log_file(self.home, path.stem).rotate_if_grown()

    # ---- one child, one tick -------------------------------------------------

    def _pass_time(self, now: float) -> None:
        before, self._last_tick = self._last_tick, now
        for child in self.children:
            if before is not None:
                child.life.pass_time(now - before)

    def _advance(self, child: Child, now: float) -> None:
        if child.state is State.WAITING:
            if all(other.state is State.READY for other in self.children if other.service.name in child.service.after):
                self._start(child)
        elif child.state is State.PAUSING:
            if now >= child.next_at:
                self._start(child)
        elif child.process is not None and child.process.poll() is not None:
            ended = End(Cause.CRASH, f"ended with {exit_text(child.process.returncode)}")
            self._bury(child, now, child.end or ended)
        elif child.state is State.STOPPING:
            if now >= child.kill_at:
                log.warning("killed", service=child.service.name, after_seconds=self.limits.stop_timeout_s)
                self._signal_group(child)
                child.kill_at = float("inf")  # the next ticks see it go
        elif child.state is State.STARTING and self._is_too_slow(child, now):
            reason = f"not ready after {self._patience_s(child):g} s: {child.message}"
            child.slow_starts += 1
            self._end(child, now, End(Cause.SLOW_START, reason))
        elif self._is_hung(child):
            reason = f"no sign of life for {child.life.silent_s:.0f} s ({child.message or 'no new heartbeat'})"
            self._end(child, now, End(Cause.HANG, f"it hung and was killed: {reason}"))
        else:
            self._check(child, now)

    def _patience_s(self, child: Child) -> float:
        """How long a child may take to be ready: twice as long where it was too slow the last time."""
        return self.limits.start_timeout_s * float(2 ** min(child.slow_starts, MAX_DOUBLINGS))

    def _is_too_slow(self, child: Child, now: float) -> bool:
        """One that recovers silently may start for as long as it works: killed, it would have to begin again."""
        if now - child.started_at <= self._patience_s(child):
            return False
        return not (child.service.recovers_silently and child.life.is_working)

    def _is_hung(self, child: Child) -> bool:
        if not self.limits.hang_timeout_s or child.state not in (State.READY, State.UNRESPONSIVE):
            return False
        is_working = child.service.works_silently and child.life.is_working
        limit_s = self.limits.hang_timeout_s * (WORKING_FACTOR if is_working else 1)
        return child.life.silent_looks >= CHECKS_UNTIL_UNRESPONSIVE and child.life.silent_s >= limit_s

    def _start(self, child: Child) -> None:
        """Start a child. A failure to do so, for example a full disk, counts as its death: it pauses and retries."""
        child.started_at, child.ready_at, child.end = time.monotonic(), 0.0, None
        try:
            child.service.prepare()
            child.process = self._spawn(child.service)
        except (OSError, InfraError, subprocess.SubprocessError) as error:
            self._bury(child, time.monotonic(), End(Cause.CRASH, f"could not be started: {error}"))
            return
        child.state, child.started_at = State.STARTING, time.monotonic()
        child.check, child.next_at, child.failed_checks, child.life = None, 0.0, 0, Vitality()
        log.info("started", service=child.service.name, pid=child.process.pid)

    def _spawn(self, service: Service) -> subprocess.Popen[bytes]:
        pipe = self._pipes[service.name] = self._log_pipes.open(service.name, self._logs[service.name])
        try:
            return subprocess.Popen(
                leashed(service.command),
                stdin=subprocess.DEVNULL,
                stdout=pipe.writer,
                stderr=subprocess.STDOUT,
                cwd=service.folder or self.home.root,
                env={**os.environ, **service.environment},
                start_new_session=True,  # Ctrl-C reaches only us: we stop the children in order
            )
        finally:
            pipe.close_writer()

    def _check(self, child: Child, now: float) -> None:
        if child.check is None:
            if now >= child.next_at and child.process is not None:
                may_work = child.service.works_silently or child.service.recovers_silently
                asks_work = may_work and child.life.asks_work
                child.check = self._checks.submit(look_at, child.service, child.process.pid, asks_work=asks_work)
            return
        if not child.check.done():
            return
        look = child.check.result()
        child.check = None
        child.life.note(look)
        self._note_check(child, look, now)
        is_doubtful = child.state is State.READY and child.failed_checks
        child.next_at = now + (1.0 if is_doubtful else CHECK_EVERY_S[child.state])

    def _note_check(self, child: Child, look: Look, now: float) -> None:
        if look.missing is None or not child.is_given_up:  # the reason of the failures is more useful than "starting"
            child.message = look.missing or ""
        if look.missing is None:
            self._note_ready(child, now)
            child.problems = child.service.problems()
            return
        child.failed_checks += 1
        if child.state is State.READY and child.failed_checks >= CHECKS_UNTIL_UNRESPONSIVE:
            child.state = State.UNRESPONSIVE
            log.warning("unresponsive", service=child.service.name, missing=look.missing)

    def _note_ready(self, child: Child, now: float) -> None:
        if child.state is not State.READY:
            log.info("ready", service=child.service.name, seconds=round(now - child.started_at, 1))
            child.ready_at = now
        child.state, child.was_ready, child.failed_checks = State.READY, True, 0

    def _restart(self, name: str, request: str) -> None:
        """What `tidemark restart` asks for. One that is not running is started without a further pause."""
        for child in self.children:
            if child.service.name != name:
                continue
            child.request = request
            child.deaths_in_row = 0
            log.info("restart_requested", service=name)
            if child.state is State.PAUSING:
                child.next_at = 0.0
            elif child.state not in (State.WAITING, State.STOPPING):
                self._end(child, time.monotonic(), End(Cause.REQUEST, "a restart was requested"))

    def _end(self, child: Child, now: float, end: End) -> None:
        """Tell a child to end; it is killed when its time is over. A stopped process dies then, too."""
        assert child.process is not None  # noqa: S101  only a child with a process is ended
        child.state, child.end, child.message = State.STOPPING, end, end.reason
        child.kill_at = now + self.limits.stop_timeout_s
        level = log.info if end.cause is Cause.REQUEST else log.warning
        level("ending", service=child.service.name, cause=str(end.cause), reason=end.reason)
        child.process.terminate()

    def _bury(self, child: Child, now: float, end: End) -> None:
        """A child died: kill the rest of its process group, then pause before the next start, longer each time."""
        if recorded := child.service.last_error():
            end = End(end.cause, f"{end.reason}. {recorded}")
        self._kill(child)
        child.process = None  # its number may soon be another process's
        is_steady = child.was_ready_for(now) > STEADY_AFTER_S
        child.check, child.end, child.problems = None, None, ""
        child.state, child.message = State.PAUSING, end.reason
        if end.cause is Cause.REQUEST:
            child.next_at = now
            child.note_end(end)
            log.info("ended", service=child.service.name, reason=end.reason)
            return
        child.deaths_in_row = 1 if is_steady else child.deaths_in_row + 1
        log.warning(
            "died", service=child.service.name, cause=str(end.cause), reason=end.reason,
            deaths_in_row=child.deaths_in_row,
        )  # fmt: skip
        if child.service.is_needed and not child.was_ready and child.deaths_in_row >= TRIES_BEFORE_GIVING_UP:
            raise ServiceFailed(_failure_text(child.service.name, end.reason, self.home))
        child.note_end(end)
        child.next_at = now + pause_after(child.deaths_in_row, FIRST_BACKOFF_S, self.limits.backoff_max_s)

    def _kill(self, child: Child) -> None:
        if child.process is not None:
            self._signal_group(child)
            try:
                child.process.wait(GONE_S)
            except subprocess.TimeoutExpired:
                log.warning("not_gone", service=child.service.name, pid=child.process.pid, after_seconds=GONE_S)
            if pipe := self._pipes.pop(child.service.name, None):
                self._log_pipes.drain(pipe, DRAIN_S)

    def _signal_group(self, child: Child) -> None:
        if child.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, signal.SIGKILL)

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
                    child.process.wait(self.limits.stop_timeout_s)
                except subprocess.TimeoutExpired:
                    log.warning("killed", service=child.service.name, after_seconds=self.limits.stop_timeout_s)
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


def stop_on_signals(supervisor: Supervisor) -> None:
    """Let SIGINT, SIGTERM and SIGHUP stop the supervisor cleanly."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        supervisor.stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)


def _failure_text(name: str, reason: str, home: Home) -> str:
    lines = last_lines(home.log_file(name), 15)
    tail = "\n".join([f" The end of {home.log_file(name)}:", *(f"  | {line}" for line in lines)]) if lines else ""
    return f"{name} did not start: {reason}, {TRIES_BEFORE_GIVING_UP} times. Everything was stopped again.{tail}"
