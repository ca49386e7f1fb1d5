"""The programme: load, queries and batch runs all the time, one fault after another, and the verdict at the end."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import structlog

from torture import alert_check, verdict
from torture.checker import Checker
from torture.commands import BATCH_TIMEOUT_S, kill_group, output_of
from torture.errors import BrokenPromise, NotInTime, TortureError
from torture.fates import Fates
from torture.fault import Fault
from torture.installation import Installation
from torture.load import planned_records
from torture.plan import PlannedShot, plan, usable
from torture.producers import Producers
from torture.result import ProgrammeResult, Shot, Violation
from torture.sampler import Sampler, growth
from torture.truth import Truth
from torture.wait import wait_for

RATE = 25.0
RUN_EVERY_S = 40.0
FIRST_EVENTS, FIRST_S = 300, 240.0
"""Before the first fault there must be something to lose."""
LOOK_EVERY_S = 0.5
ON_DISKS = ("disk", "power")
WITHOUT_DISKS = "needs an installation with disks of its own"
WITHOUT_ALERTS = "needs an installation with alerts"
DEFECTS = (AttributeError, ImportError, NameError, TypeError)
"""Errors that no state of the installation explains: the code of the fault does not fit the platform any more."""
OnShot = Callable[[int, Shot], None]

log = structlog.get_logger()


@dataclass(frozen=True)
class ProgrammeOptions:
    """What to do. No new fault starts after `minutes`."""

    seed: int
    shots: int
    minutes: float
    kinds: Sequence[str] = ()
    rate: float = RATE
    patience_s: float = verdict.CAUGHT_UP_S
    """At the end, everything has to catch up within this time."""
    run_every_s: float = RUN_EVERY_S
    """The pause between two batch runs of the programme itself."""
    in_given_order: bool = False
    """Inject the faults in the order in which they are given, instead of one that the seed decides."""


@dataclass
class Programme:
    """One run on an installation that was started. The caller stops it."""

    installation: Installation
    options: ProgrammeOptions
    faults: Sequence[Fault]
    on_shot: OnShot = lambda _number, _shot: None
    is_enough: Callable[[ProgrammeResult], bool] = lambda _result: False
    """Whether the result already has what the caller looks for: then the programme ends at once."""
    result: ProgrammeResult = field(init=False)

    def __post_init__(self) -> None:
        self.result = ProgrammeResult(self.options.seed, began=datetime.now(UTC).isoformat(timespec="seconds"))
        self.began = time.monotonic()
        installation, seed = self.installation, self.options.seed
        self.fates = Fates(installation.folder / "fates.jsonl")
        self.truth = Truth(installation)
        views = list(installation.declared.views_of(installation.source_name))
        records = planned_records(installation.source, views, seed)
        self.producers = Producers(installation, records, self.fates, self.truth.know, self.options.rate)
        self.checker = Checker(installation, self.truth, seed, self.began)
        self.sampler = Sampler(installation, self.checker, self.fates, self.began)
        self.runs = Runs(installation, self.options.run_every_s)
        self._open: list[Shot] = []

    def run(self) -> ProgrammeResult:
        """Run the programme. What is wrong is in the result; only a programme that cannot continue raises."""
        faults, self.result.left_out = usable(self.faults, self.options.kinds)
        self.result.left_out |= {each.name: reason for each in faults if (reason := self._lacks(each))}
        faults = [each for each in faults if each.name not in self.result.left_out]
        with self._busy():
            wait_for("the first events", lambda: self.fates.counts["acknowledged"] >= FIRST_EVENTS, FIRST_S)
            if "archiver" in self.installation.processes.services:
                verdict.wait_any_archived(self.installation, FIRST_S)
            self._recover(self._now(), FIRST_S)
            shots = plan(faults, self.options.shots, self.options.seed, in_given_order=self.options.in_given_order)
            for number, each in enumerate(shots, start=1):
                if self._now() > self.options.minutes * 60 or self._has_enough():
                    self.result.not_tried = [shot.fault.name for shot in shots[number - 1 :]]
                    break
                self._shoot(number, each)
            if not self._has_enough():
                self._finish()
            well = None if self.result.unrecovered or self._has_enough() else round(self._now(), 2)
            self.result.shots += [replace(each, recovered_at=well) for each in self._open]  # time was up after them
        self._judge()
        return self.result

    def _lacks(self, fault: Fault) -> str:
        """What this installation lacks for a fault; empty: nothing."""
        if self.installation.disks is None and fault.kind in ON_DISKS:
            return WITHOUT_DISKS
        return WITHOUT_ALERTS if "alerts" in fault.of and "alerts" not in self.installation.processes.services else ""

    # ---- shots ----

    def _shoot(self, number: int, each: PlannedShot) -> None:
        chance = random.Random(each.seed)  # noqa: S311  # what the fault leaves to chance
        self.installation.notes.clear()
        at, before, is_injected = self._now(), self._counted(), True
        log.info("injecting", number=number, fault=each.fault.name)
        try:
            with each.fault.strike(self.installation, chance):
                self._last(each.fault.lasting_s)
        except (BrokenPromise, AssertionError) as error:  # the fault itself found it
            self._wrong("a broken promise", f"{each.fault.name}: {error}"[:2000])
        except Exception as error:  # one fault that fails must not stop the others
            reason = f"{type(error).__name__}: {error}"[:300]
            self.installation.notes.append(reason)
            self.result.not_injected.append(f"{each.fault.name}: {reason}")
            is_injected = False
            if isinstance(error, DEFECTS):
                self._wrong("a defect of the fault itself", f"{each.fault.name}: {reason}")
        shot = Shot(
            each.fault.name, each.fault.kind, round(at, 2), round(self._now(), 2), None, None, is_injected=is_injected
        )
        self._open.append(shot)
        is_well = self._recover(shot.healed_at, each.fault.recovery_s) if each.waits else False
        self._close(number, shot, before, is_last=each.waits, is_well=is_well)

    def _last(self, seconds: float) -> None:
        """Let the fault last, unless the result has enough."""
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0 and not self._has_enough():
            time.sleep(min(left_s, LOOK_EVERY_S))

    def _recover(self, since: float, within_s: float) -> bool:
        """Wait for complete answers with everything acknowledged by now, and for every process to be ready."""
        ends = self.fates.ends()

        def is_over() -> bool:
            return (not self.checker.behind(ends, since) and self.installation.processes.is_up()) or self._has_enough()

        try:
            wait_for("complete answers", is_over, within_s)
        except NotInTime:
            stuck = ", ".join(shot.fault for shot in self._open) or "the start"
            ready = [f"{each['name']} {each['state']} {each['message']}" for each in self._services()]
            self.result.unrecovered.append(
                f"{self._now():.0f} s: not within {within_s:g} s after {stuck}: cut {self.checker.seen.cut} of {ends}, "
                f"behind {', '.join(self.checker.behind(ends, since)) or 'none'}; {'; '.join(ready)}"
            )
            return False
        return not self._has_enough()

    def _services(self) -> list[dict[str, str]]:
        try:
            found: list[dict[str, str]] = self.installation.processes.status()["services"]
        except TortureError:
            return []
        return found

    def _close(self, number: int, shot: Shot, before: tuple[int, int], *, is_last: bool, is_well: bool) -> None:
        comparisons, errors = (now - then for now, then in zip(self._counted(), before, strict=True))
        note = "; ".join(self.installation.notes)
        done = replace(shot, comparisons=comparisons, errors=errors, note=note)
        self._open[-1] = done
        if is_last:
            now = round(self._now(), 2)
            if is_well:  # only the last has a recovery time: the next fault came before the others were over
                self._open[-1] = replace(done, recovery_s=round(now - done.healed_at, 2))
                self._open = [replace(each, recovered_at=now) for each in self._open]
            self.result.shots += self._open
            done = self._open[-1]
            self._open.clear()
        self.on_shot(number, done)

    def _counted(self) -> tuple[int, int]:
        return self.checker.comparisons, sum(self.checker.refusals.values())

    # ---- what runs all the time ----

    @contextmanager
    def _busy(self) -> Iterator[None]:
        parts = (self.truth, self.producers, self.checker, self.sampler, self.runs)
        for part in parts:
            part.start()
        try:
            yield
        finally:
            self.runs.stop()
            self.producers.stop()
            self.sampler.stop()
            self.checker.stop()
            self.truth.stop()
            self.fates.close()

    def _finish(self) -> None:
        """Without faults and events, everything has to catch up and to be right."""
        self.runs.stop()
        self.producers.stop()
        try:
            self.installation.processes.wait_ready()
            verdict.wait_caught_up(
                self.installation, self.checker, self.fates, self.options.patience_s, except_quarantined=True
            )
            verdict.wait_archived(self.installation, self.fates, self.options.patience_s)
            last = self.installation.commands.batch_run()
            if last.code:
                self._wrong("no run succeeds any more", last.output)
            self.runs.published += not last.code
            verdict.wait_caught_up(self.installation, self.checker, self.fates, self.options.patience_s)
            verdict.check_whole(self.installation, self.checker, self.truth)
            verdict.check_swept(self.installation)
            verdict.check_master(self.installation, self.truth, self.fates, self.result)
            self._letters()
            if self.installation.settings.alerts_enabled:
                self.result.episodes, problems = alert_check.check_alerts(
                    self.installation, self.truth, self.options.patience_s
                )
                for each in problems:
                    self._wrong("an alert", each)
        except NotInTime as error:
            self.result.unrecovered.append(f"at the end: {error}")
            verdict.check_master(self.installation, self.truth, self.fates, self.result)  # is it late, or lost?

    def _letters(self) -> None:
        """Check dead letters; they are sent after their commit, so the last may still be on their way."""
        for _ in range(20):
            self.result.poison_missing.clear()
            verdict.check_letters(self.installation, self.truth, self.result)
            if not self.result.poison_missing:
                return
            time.sleep(1)

    def _has_enough(self) -> bool:
        checker = self.checker
        wrong = [*self.result.wrong, *checker.wrong]
        return self.is_enough(replace(self.result, wrong=wrong, cut_regressions=checker.regressions))

    def _judge(self) -> None:
        result, checker = self.result, self.checker
        result.seconds = round(self._now(), 1)
        result.samples = self.sampler.samples
        result.wrong = [*result.wrong, *checker.wrong]
        result.cut_regressions = checker.regressions
        result.answers, result.comparisons = checker.answers, checker.comparisons
        result.degraded, result.refusals = checker.degraded, dict(checker.refusals)
        counts = self.fates.counts
        result.sent, result.duplicates = self.producers.sent, self.producers.duplicates
        result.acknowledged, result.refused = counts["acknowledged"], counts["refused"]
        result.unknown, result.poison = counts["unknown"], self.producers.poison
        result.runs, result.failed_runs = self.runs.published, [each[-300:] for each in self.runs.failures]
        result.quarantined = list(checker.quarantined.values())
        for problem in self.producers.problems[:20]:
            self._wrong("an error that is no 429 or 503", problem)
        for strange in self.truth.strange[:20]:
            self._wrong("a record that nobody sent", strange)
        for grown in growth(result.samples):
            self._wrong("growth", grown)

    def _wrong(self, what: str, detail: str) -> None:
        self.result.wrong.append(Violation(round(self._now(), 2), what, detail))

    def _now(self) -> float:
        return time.monotonic() - self.began


class Runs:
    """A thread that makes batch runs, one after another; faults kill some of them."""

    def __init__(self, installation: Installation, every_s: float = RUN_EVERY_S) -> None:
        self._installation, self._every_s = installation, every_s
        self.published, self.failures = 0, list[str]()
        self._process: subprocess.Popen[str] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="runs", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and kill the run that is under way: that must not matter either."""
        self._stopping.set()
        if self._process is not None:
            kill_group(self._process)
        self._thread.join(60)

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            with self._installation.run_turn:
                if self._stopping.is_set():  # stopped while it waited for its turn
                    return
                self._process = self._installation.commands.spawn_batch_run()
                self._installation.run_turn.yields(self._process)
                said = output_of(self._process, BATCH_TIMEOUT_S)
            if self._process.returncode:
                self.failures.append(said)
            else:
                self.published += 1


def torture(
    folder: Path, options: ProgrammeOptions, faults: Sequence[Fault], on_shot: OnShot, **installation_options: object
) -> ProgrammeResult:
    """Run a programme on a new installation in `folder`, and take it down at the end."""
    installation = Installation(folder, **installation_options)  # type: ignore[arg-type]
    try:
        installation.start()
        programme = Programme(installation, options, faults, on_shot)
        try:
            return programme.run()
        finally:
            programme.result.write(folder / "result.json")  # also of one that raised
    finally:
        installation.throw_away()
