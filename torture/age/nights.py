"""A night of an ageing installation, and what happens in some nights only."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import psutil

from infra.home import Home
from torture.age.errors import WrongAnswer
from torture.age.installation import AgeingInstallation, started
from torture.age.measures import measure
from torture.age.old_version import check_upgraded, write_old_formats
from torture.age.processes import ServingProcess, measure_starts

FAILED_RUN, VIEW_CHANGE, LOST_REDIS, WHOLE = 9, 20, 25, 10
"""Every so many nights a run ends in the middle, a view changes, Redis forgets everything, and answers over all time
are compared instead of the last days."""
STEPS = ("run.after_open", "run.after_views", "run.before_publish", "run.after_publish")
"""Where runs end in the middle, in turn."""
MAX_RESTART, MAX_STARTS, MAX_MEASURE = 6, 60, 6
"""Services restart, processes start, and folders are measured at least every so many nights, if the life is long."""
WARM_UP = 5
"""Nights that are simulated before those that are measured: the first ones load classes and fill caches."""


@dataclass
class Upgraded:
    """What the upgrade of the home took."""

    night: int = 0
    commits: int = 0
    """Sealed commits of the archiver that were written back into the log."""
    seconds: float = 0.0
    """Of the night in which the new version took over."""
    requests: int = 0
    """That the serving layer answered meanwhile, all with status 200."""


@dataclass
class Nights:
    """The programme of a life of so many nights. With `has_upgrade`, its first half ends in the formats of 0.1.0."""

    installation: AgeingInstallation
    count: int
    has_upgrade: bool = True
    upgraded: Upgraded = field(default_factory=Upgraded)
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds of each part of the nights, together."""

    def __post_init__(self) -> None:
        self.restart = _every(MAX_RESTART, self.count // 4)
        self.starts = _every(MAX_STARTS, self.count // 5)
        self.measuring = _every(MAX_MEASURE, self.count // 60)
        nights = range(WARM_UP + self.count // 2, WARM_UP + self.count)
        quiet = (night for night in nights if not any(_is_due(night, every) for every in (FAILED_RUN, LOST_REDIS)))
        self.upgrade = next(quiet, -1) if self.has_upgrade else -1
        own = psutil.Process()
        self._processes = (own, *(child for child in own.children() if child.name() == "java"))

    def pass_night(self, night: int) -> dict[str, float]:
        """One night: what was measured of it."""
        self.installation.clock.skip_day()
        began = time.monotonic()
        if night == self.upgrade:
            found = self._upgrade(night)
            self.upgraded.seconds, self.upgraded.night = time.monotonic() - began, night
        else:
            found = self._night(night)
        if night >= WARM_UP and (night - WARM_UP) % self.starts == 0:
            with self._phase("processes"):
                aged = self.installation
                found |= measure_starts(aged.settings, aged.clock.ahead_s, _question(aged.span()))
        with self._phase("dating files"):
            self.installation.clock.date_files(self.installation.folder.root)
        if night % self.measuring == 0:
            with self._phase("measuring"):
                found |= measure(self.installation)
        return found

    def _night(self, night: int) -> dict[str, float]:
        aged = self.installation
        found: dict[str, float] = {}
        with self._timed("archive", found):
            records = aged.archive()
        if aged.writer is None:
            aged.start_writer()
        with self._timed("micro_batch", found):
            aged.count(records, night)
        if aged.engine is not None:
            with self._phase("comparing"):
                aged.compare(whole=False)
        if _is_due(night, VIEW_CHANGE):
            aged.change_view()
        if _is_due(night, FAILED_RUN):
            with self._phase("failing runs"):
                aged.run_and_die(STEPS[night // FAILED_RUN % len(STEPS)])
        with self._timed("run", found):
            aged.run()
        if _is_due(night, LOST_REDIS):
            with self._phase("restarts"):
                aged.lose_redis()
        if aged.engine is None or _is_due(night, self.restart):
            with self._timed("archiver_open", found), self._phase("restarts"):
                aged.start_archiver()
            with self._timed("speed_open", found), self._phase("restarts"):
                aged.start_writer()
            with self._timed("serving_open", found), self._phase("restarts"):
                aged.start_serving()
        with self._phase("comparing"):
            aged.compare(whole=_is_due(night, WHOLE))
        with self._timed("upkeep", found):
            aged.keep_up()
        return found

    def _upgrade(self, night: int) -> dict[str, float]:
        """The home gets the formats of 0.1.0. The serving layer of this version replies; the other services follow."""
        aged = self.installation
        home, views = Home(aged.settings.home), started(aged.writer).speed_views
        aged.stop_serving()
        self.upgraded.commits = write_old_formats(aged.spark, home, aged.folder, aged.table, views)
        aged.forget_tables()
        aged.start_serving()
        aged.compare(whole=True)  # from the old formats, which reading does not change
        if not aged.folder.publish_log.is_file():
            raise WrongAnswer("Reading a home of 0.1.0 migrated its publish log.")
        asked = _question(aged.span())
        with ServingProcess.running(aged.settings, aged.clock.ahead_s) as serving, serving.polled(asked):
            home.prepare()
            aged.start_writer()
            found = self._night(night)
            rows = serving.ask(asked)["rows"]
            if sum(row["events"] for row in rows) != aged.count_recent():
                raise WrongAnswer(f"After the upgrade the serving layer answers {rows}.")
        self.upgraded.requests = serving.statuses.total()
        aged.compare(whole=True)
        check_upgraded(home, aged.folder, aged.table, started(aged.writer).speed_views)
        return found

    @contextmanager
    def _timed(self, name: str, found: dict[str, float]) -> Iterator[None]:
        """Processor seconds of this process and Spark's: other work of the machine does not change them."""
        began = self._processor_s()
        with self._phase(name) if not name.endswith("_open") else nullcontext():
            yield
        found[f"{name}_s"] = self._processor_s() - began

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - began

    def _processor_s(self) -> float:
        return sum(times.user + times.system for times in (each.cpu_times() for each in self._processes))


def _every(most: int, wanted: int) -> int:
    return max(1, min(most, wanted))


def _is_due(night: int, every: int) -> bool:
    return night % every == every - 1


def _question(span: Mapping[str, Any]) -> str:
    return f"/views/totals/query?{urlencode(span)}"
