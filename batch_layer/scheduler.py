"""The scheduler's process: `python -m batch_layer.scheduler`, run by the supervisor. It starts batch runs when due."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from batch_layer.backlog import Action
from batch_layer.backlog_watch import BacklogWatch, NewestRun
from batch_layer.deadline import GRACE_S
from batch_layer.failures import note_failure, read_failures
from batch_layer.run_child import run_child
from batch_layer.run_sources import sources_to_run, sources_with_views
from batch_layer.schedule import (
    IS_BUSY,
    SETTLING_S,
    Attempt,
    Progress,
    Schedule,
    overdue_since,
    progress_from_json,
)
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.errors import BatchError
from hand_off.manifests import read_manifest
from hand_off.publish_log import LogStamp
from infra.disk import sync_folder
from infra.home import read_json, write_json
from infra.process_status import ProcessStatus, StatusFile, read_status, status_path
from infra.processes import Worker, run_worker
from infra.settings import Settings, child_environment
from infra.times import readable_utc
from master_dataset.cut import Cut, count_between, cut_from_json

HEARTBEAT_S = 1.0
WATCH_S = 1.0
SOURCES_S = 60.0
"""How often it is looked up whose backlogs are to be watched."""
HANGS_S = 2 * GRACE_S
"""After its deadline, for a run to end itself."""

log = structlog.get_logger()


def status_file(settings: Settings) -> Path:
    """What the scheduler says of itself, every second."""
    return status_path(settings, "scheduler")


def progress_file(settings: Settings) -> Path:
    """What it remembers from one start to the next."""
    return settings.home / "schedule.json"


def run_command(source: str) -> list[str]:
    """The command that makes a run. It leaves readers that somebody rolled back where they are."""
    return [sys.executable, "-P", "-m", "tidemark", "batch", "run", "--keep-pin", "--source", source]


@dataclass(frozen=True)
class Newest:
    """The newest published run of a source, whoever made it; run 0 where there is none."""

    run: int = 0
    started: float = 0.0
    seconds: float | None = None
    cut: Cut = field(default_factory=dict)
    published: float | None = None


class Scheduler:
    """Starts the runs that are due, one after the other, and says how things are.

    One thread calls `fire` and `relieve`, another `beat`, a third `watch`; any may ask for the `status`.
    """

    def __init__(
        self,
        settings: Settings,
        find_sources: Callable[[], Sequence[str]],
        command: Callable[[str], list[str]] = run_command,
        clock: Callable[[], float] = time.time,
        is_stopping: Callable[[], bool] = lambda: False,
        find_watched: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        self.settings = settings
        self.backlogs = BacklogWatch(settings)
        self._find_watched = find_watched or find_sources
        self._watched: tuple[float, Sequence[str]] = (float("-inf"), ())
        self._to_relieve: dict[str, Action] = {}
        self.schedule = Schedule.of(settings.batch_schedule, settings.batch_schedule_tz)
        self._is_stopping = is_stopping
        self._find_sources = find_sources
        self._command = command
        self._status = StatusFile(status_file(settings))
        self._clock = clock
        self._began = clock()
        self._running: tuple[str, float] | None = None
        self._newest: dict[str, tuple[LogStamp | None, Newest]] = {}
        remembered = progress_from_json(read_json(progress_file(settings)), self._began)
        self._remember(remembered.with_sources(find_sources(), self._began))

    def fire(self) -> None:
        """Make the runs that are due, or to be tried again. One thread at a time calls it: at the start, at every due
        time, and when `next_try` says.

        A due time that passes while runs are made is answered by another round, at once.
        """
        while not self._is_stopping():
            now, next_try = self._clock(), self.next_try()
            if self.schedule.is_due(self._progress.handled, now):
                self._make_runs()
            elif next_try is not None and next_try <= now:
                self._make_runs(after=self._progress.last)
            else:
                return

    def watch(self) -> bool:
        """Look how far the speed layer is behind. Whether a run is needed because of that: `relieve` makes it."""
        looked, sources = self._watched
        if time.monotonic() - looked > SOURCES_S:
            sources = list(self._find_watched())
            self._watched = (time.monotonic(), sources)
        is_busy = self._running is not None
        found = dict(self.backlogs.look(sources, self._newest_for_backlog, is_busy=is_busy))
        if is_busy or self._running is not None:  # one at a time; it is looked at again after that one
            return False
        self._to_relieve = found
        return bool(found)

    def relieve(self) -> None:
        """Make the runs that backlogs need. The schedule takes no notice of them: what is due stays due."""
        while self._to_relieve and not self._is_stopping():
            source, action = self._to_relieve.popitem()
            self._running = (source, self._clock())
            self.backlogs.begin(source, action)
            code = 1
            try:
                code = self._make_run(source, *(["--overtake"] if action == Action.OVERTAKE else []))
            finally:
                self._running = None
                self.backlogs.end(source, code, self._newest_for_backlog(source).run)

    def _newest_for_backlog(self, source: str) -> NewestRun:
        try:
            newest = self._newest_run(source)
        except BatchError:
            newest = Newest()
        age_s = None if newest.published is None else max(self._clock() - newest.published, 0.0)
        is_pinned = publish_log.read_pin(BatchFolder.of(self.settings, source)).run is not None
        return NewestRun(newest.run, newest.seconds, age_s, is_pinned)

    def next_try(self) -> float | None:
        """When the runs that failed are tried again; None where none has, or somebody made them since."""
        last, pause_s = self._progress.last, self.settings.batch_retry_s
        if last is None or not pause_s or not (last.error or self._lacking(last)):
            return None
        return last.next_try(pause_s)

    def beat(self) -> None:
        """Say how things are. Called every second, from a thread of its own."""
        now = self._clock()
        if self._progress.handled > now:  # the clock was set back: without this, nothing would be due until it is there
            self._remember(replace(self._progress, handled=now))
        self._status.write(self.status(now))

    def status(self, now: float) -> ProcessStatus:
        """The status of the process at a time."""
        sources, troubles = {}, []
        running, archived = self._running, self._archived()
        for source in self._progress.seen:
            found = self._state_of(source, now, archived.get(source))
            sources[source] = found
            if found["trouble"]:
                troubles.append(f"source {source!r}: {found['trouble']}")
        last = self._progress.last
        details = {
            "schedule": f"{self.settings.batch_schedule} {self.settings.batch_schedule_tz}",
            "next_due": self.schedule.next_after(now),
            "next_try": self.next_try(),
            "running": None if running is None else {"source": running[0], "since": running[1]},
            "last": None if last is None else asdict(last),
        }
        return ProcessStatus(now, sources=sources, overdue="; ".join(troubles), details=details)

    def _state_of(self, source: str, now: float, archived: Cut | None) -> dict[str, Any]:
        failures = read_failures(BatchFolder.of(self.settings, source))
        failed = {
            "failed_runs": 0 if failures is None else failures.count,
            "failing_since": None if failures is None else failures.since,
        }
        nothing = {"run": None, "data_from": None, "published": None, "seconds": None, "behind": None, "overdue_s": 0.0}
        try:
            newest = self._newest_run(source)
        except BatchError as error:
            return {**nothing, **failed, "backlog": self.backlogs.status(source), "trouble": str(error)}
        last, data_from = self._progress.last, self._data_from(source, newest)
        since = overdue_since(self.schedule, data_from=data_from, began=self._began, now=now, last=last, source=source)
        trouble = ""
        if since is not None:
            trouble = f"overdue: no run since the one due at {datetime.fromtimestamp(since, UTC):%Y-%m-%d %H:%M} UTC"
            if last is not None and last.started >= since and last.has_failed(source):
                trouble += f", which failed{f' ({last.error})' if last.error else ''}"
                if (next_try := self.next_try()) is not None:
                    trouble += f" and is tried again at {datetime.fromtimestamp(next_try, UTC):%H:%M} UTC"
        if failures is not None and now >= self._began + SETTLING_S:
            trouble = "; ".join(filter(None, [trouble, f"{failures} (`tidemark logs scheduler`)"]))
        return {
            "run": newest.run,
            "data_from": newest.started if newest.run else None,
            "published": newest.published,
            "seconds": newest.seconds,
            "behind": None if archived is None else count_between(newest.cut, archived),
            "overdue_s": 0.0 if since is None else round(now - since, 1),
            **failed,
            "backlog": self.backlogs.status(source),
            "trouble": trouble,
        }

    def _newest_run(self, source: str) -> Newest:
        folder = BatchFolder.of(self.settings, source)
        known, newest = self._newest.get(source, (None, Newest()))
        version = publish_log.stamp(folder, known)
        if version is None:
            return Newest()
        if version != known:  # a log and a manifest may be long: read when they changed
            entry = publish_log.last(folder)
            newest = Newest(entry.run, entry.at, None, entry.cut, entry.at if entry.run else None)
            if entry.run:
                with suppress(BatchError):
                    made = read_manifest(folder, entry.run)
                    newest = replace(newest, started=made.started, seconds=made.finished - made.started)
            self._newest[source] = (version, newest)
        return newest

    def _data_from(self, source: str, newest: Newest) -> float:
        """Since when a source waits for a run: the start of its newest, or its first sight."""
        return newest.started if newest.run else self._progress.seen[source]

    def _archived(self) -> dict[str, Cut]:
        """How far the archiver is with each source, by its last word; it may be older than the master dataset."""
        archiver = read_status(status_path(self.settings, "archiver"))
        sources = {} if archiver is None else archiver.sources
        return {source: cut_from_json(each["cut"]) for source, each in sources.items()}

    def _lacking(self, last: Attempt) -> list[str]:
        """The sources to which an attempt gave no run, and that nobody else gave one that answers for the due time."""
        return [source for source in self._progress.seen if last.gave_none(source) and not self._is_answered(source)]

    def _is_answered(self, source: str) -> bool:
        try:
            newest = self._newest_run(source)
        except BatchError:
            return False
        return newest.run > 0 and not self.schedule.is_due(newest.started, self._clock())

    def _make_runs(self, after: Attempt | None = None) -> None:
        """A run for each source; `after` an attempt that failed, for those that still lack theirs."""
        started, codes, error = self._clock(), {}, ""
        try:
            self._remember(self._progress.with_sources(self._find_sources(), started))
            for source in self._progress.seen if after is None else self._lacking(after):
                self._running = (source, self._clock())
                codes[source] = self._make_run(source)
                if self._is_stopping():
                    return  # not remembered: the next start makes these runs
        except Exception as problem:
            log.exception("runs_failed")
            error = str(problem).partition("\n")[0] or type(problem).__name__
        finally:
            self._running = None
        last = Attempt(started, self._clock(), codes, error)
        if after is None:
            self._remember(replace(self._progress, handled=started, last=last))
        else:  # not handled: a due time that has just passed is also for those that need not be tried again
            last = replace(last, exit_codes={**after.exit_codes, **codes}, tries=after.tries + 1)
            self._remember(replace(self._progress, last=last))

    def _make_run(self, source: str, *options: str) -> int:
        log.info("run_started", source=source, options=list(options))
        began, started = time.monotonic(), self._clock()
        limit_s = self.settings.batch_deadline_s and self.settings.batch_deadline_s + HANGS_S
        code = run_child(
            [*self._command(source), *options], child_environment(self.settings), self._is_stopping, limit_s
        )
        log.info("run_ended", source=source, exit_code=code, seconds=round(time.monotonic() - began, 1))
        if code not in (0, IS_BUSY) and not self._is_stopping():
            self._report_failure(source, code, started)
        return code

    def _report_failure(self, source: str, code: int, started: float) -> None:
        """Log it for all to see, with how many there were; and note it if the run could not do so itself."""
        folder = BatchFolder.of(self.settings, source)
        noted = read_failures(folder)
        if noted is None or noted.at < started:
            ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            noted = note_failure(folder, f"it ended with {ended}", self._clock())
        log.error(
            "run_failed", source=source, in_a_row=noted.count, since=readable_utc(noted.since), reason=noted.reason
        )

    def _remember(self, progress: Progress) -> None:
        self._progress = progress
        write_json(progress_file(self.settings), progress.to_json())
        sync_folder(progress_file(self.settings).parent)


def run_scheduler(
    worker: Worker,
    find_sources: Callable[[], Sequence[str]],
    command: Callable[[str], list[str]] = run_command,
    find_watched: Callable[[], Sequence[str]] | None = None,
) -> None:
    """Follow the schedule until told to stop."""
    from apscheduler.jobstores.base import ConflictingIdError
    from apscheduler.schedulers.blocking import BlockingScheduler

    from batch_layer.metrics import ScheduleMetrics

    settings = worker.settings
    if not settings.batch_schedule:
        raise BatchError("batch_schedule is empty, so there is nothing to schedule. Set it, like '15 3 * * *'.")
    ours = Scheduler(settings, find_sources, command, is_stopping=lambda: worker.is_stopping, find_watched=find_watched)
    scheduler = BlockingScheduler(
        executors={name: {"type": "threadpool", "max_workers": 1} for name in ("default", "heartbeat", "watch")},
        timezone=UTC,
    )
    always: dict[str, Any] = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}

    def beat() -> None:
        if worker.is_stopping:
            scheduler.shutdown(wait=False)
        else:
            ours.beat()

    def fire() -> None:
        ours.fire()
        next_try = ours.next_try()
        if next_try is not None and not worker.is_stopping:
            when = datetime.fromtimestamp(next_try, UTC)
            scheduler.add_job(fire, "date", run_date=when, id="next_try", replace_existing=True, **always)

    def watch() -> None:
        if not worker.is_stopping and ours.watch():
            with suppress(ConflictingIdError):  # it is waiting for its turn already, or at work
                scheduler.add_job(ours.relieve, "date", id="relieve", **always)

    ours.beat()
    # At once, for what was missed while we were down; then at each due time, however late: what a sleeping machine
    # missed is made up by one run. The heartbeat wakes the loop, whose own waiting does not notice such a sleep.
    scheduler.add_job(fire, ours.schedule.trigger, next_run_time=datetime.now(UTC), **always)
    scheduler.add_job(beat, "interval", seconds=HEARTBEAT_S, executor="heartbeat", **always)
    scheduler.add_job(watch, "interval", seconds=WATCH_S, executor="watch", **always)
    metrics = ScheduleMetrics(lambda: ours.status(time.time()))
    with worker.metrics(settings.scheduler_metrics_port, metrics) as address:
        log.info("scheduled", cron=settings.batch_schedule, zone=settings.batch_schedule_tz, metrics=address)
        scheduler.start()  # returns when `beat` saw the flag; the thread of `fire` ends its run before the process ends


def main() -> int:
    """The program."""

    def run(worker: Worker) -> None:
        settings = worker.settings
        run_scheduler(worker, lambda: sources_to_run(settings), find_watched=lambda: sources_with_views(settings))

    return run_worker("scheduler", run)


if __name__ == "__main__":
    sys.exit(main())
