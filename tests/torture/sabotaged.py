"""Installations with deliberately broken parts, and how the fault programme finds out."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from hand_off.speed_views import SpeedViews
from infra.clients.kafka_admin import KafkaAdmin
from infra.home import read_json
from master_dataset.kafka.positions import read_positions
from master_dataset.kafka.topics import delete_records
from serving_layer.alerts.journal import Journal, journal_path
from torture import verdict
from torture.commands import CommandResult
from torture.errors import BrokenPromise
from torture.fault import Fault, Strike
from torture.faults.damage import any_commit, empty
from torture.faults.forgery import strike_forged_letters
from torture.faults.imports import overtaken
from torture.faults.versions import evolved
from torture.installation import Installation
from torture.programme import Programme, ProgrammeOptions
from torture.result import ProgrammeResult
from torture.wait import wait_for

FOLDER = Path(__file__).with_name("sabotage")
LASTING_S = 12.0
TAKEOVER_S = 120.0
GIVE_UP_S = 60.0
"""A broken build that does not show within this time never does."""

Symptom = Callable[[ProgrammeResult, Installation], bool]


@dataclass(frozen=True)
class Sabotage:
    """A broken build: which processes have it, what provokes it, and the symptom that shows it."""

    name: str
    parts: tuple[str, ...]
    shows: Symptom
    provoke: Strike
    needs_master: bool = True
    """False: it shows without the master dataset and without alerts. An installation without them starts sooner."""


def a_wrong_answer(result: ProgrammeResult, installation: Installation) -> bool:
    """An answer that differs from the reference at its cut, or that is at a cut that never existed."""
    del installation
    return any(each.what in ("a wrong answer", "an answer at a cut that Kafka does not have") for each in result.wrong)


def wrong_or_refused(result: ProgrammeResult, installation: Installation) -> bool:
    """A wrong answer; or no run succeeds, because the platform finds the defect before it publishes."""
    refused = ("a broken promise", "no run succeeds any more")
    return any(each.what in refused for each in result.wrong) or a_wrong_answer(result, installation)


def something_lost(result: ProgrammeResult, installation: Installation) -> bool:
    """An acknowledged event is nowhere in the master dataset, and the archiver reports no problem."""
    return is_lost(result) and not is_refused(installation)


def lost_or_refused(result: ProgrammeResult, installation: Installation) -> bool:
    """Likewise; or the archiver found the defect and stopped."""
    return is_lost(result) or is_refused(installation)


def is_lost(result: ProgrammeResult) -> bool:
    """Whether an acknowledged event has no row at all."""
    return any(verdict.NOWHERE in each for each in result.lost)


def is_refused(installation: Installation) -> bool:
    """Whether the archiver says that something is wrong."""
    status = read_json(installation.home.run / "archiver.json") or {}
    return bool(status.get("error") or any(each.get("refused") for each in status.get("sources", {}).values()))


def poison_missed(result: ProgrammeResult, installation: Installation) -> bool:
    """Dead letters are missing."""
    del installation
    return bool(result.poison_missing)


def notified_wrongly(result: ProgrammeResult, installation: Installation) -> bool:
    """An alert notified twice, never, or without reason."""
    del installation
    return any(each.what == "an alert" for each in result.wrong)


def wrong_or_back(result: ProgrammeResult, installation: Installation) -> bool:
    """A wrong answer, or a cut that goes back in answers that are not degraded."""
    return bool(result.cut_regressions) or a_wrong_answer(result, installation)


@contextmanager
def wait(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Do nothing, and let events come."""
    del installation, chance
    yield


@contextmanager
def kill_collector(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Stop Kafka while events come, and kill the collector that has them."""
    del chance
    installation.processes.signal("kafka", signal.SIGSTOP)
    try:
        time.sleep(2)
        installation.processes.kill("collector")
    finally:
        installation.processes.signal("kafka", signal.SIGCONT)
    yield


@contextmanager
def kill_behind(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Stop the archiver until it is behind, and kill it."""
    del chance
    installation.processes.signal("archiver", signal.SIGSTOP)
    time.sleep(3)
    installation.processes.kill("archiver")
    yield


@contextmanager
def kill_alerts(installation: Installation, chance: random.Random) -> Iterator[None]:
    """The alert process is killed after its first notification."""
    del chance
    with closing(Journal(journal_path(installation.settings))) as journal:
        wait_for("an alert", lambda: any(each.fired_at for each in journal.episodes.all()), TAKEOVER_S, every_s=0.5)
    installation.processes.kill("alerts")
    yield


@contextmanager
def forget(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Kafka forgets records that the archiver has not read yet, as when retention overtakes it."""
    del chance
    installation.processes.signal("archiver", signal.SIGSTOP)
    time.sleep(3)
    kafka = installation.addresses.kafka
    ends = read_positions(installation.settings, kafka, installation.source).latest
    with KafkaAdmin(installation.settings, kafka) as admin:
        delete_records(admin, installation.source_topic, ends)
    installation.processes.signal("archiver", signal.SIGCONT)
    yield


@contextmanager
def two_writers(installation: Installation, chance: random.Random) -> Iterator[None]:
    """The speed layer stands still before it writes, until another has taken its place, and then goes on beside it."""
    del chance
    with installation.redis() as client:
        views = SpeedViews(client, installation.source_name)
        before = views.reader.snapshot()
        installation.processes.stop_at("speed", "speed.before_apply")
        other = installation.commands.spawn_module("speed_layer")
        try:
            wait_for("another writer", lambda: views.reader.snapshot().epoch != before.epoch, TAKEOVER_S)
            taken = views.reader.snapshot().meta
            wait_for("what it applies", lambda: views.reader.snapshot().meta != taken, TAKEOVER_S)
            time.sleep(3)
            installation.processes.signal("speed", signal.SIGCONT)
            yield
        finally:
            other.kill()
            other.wait(30)
            installation.processes.signal("speed", signal.SIGCONT)


@contextmanager
def lose_redis(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Flush Redis while the speed layer is stopped."""
    del chance
    installation.processes.signal("speed", signal.SIGSTOP)
    with installation.redis() as client:
        client.flushall()
    try:
        yield
    finally:
        installation.processes.signal("speed", signal.SIGCONT)


@contextmanager
def run_from_damaged(installation: Installation, chance: random.Random) -> Iterator[None]:
    """A commit of the master dataset is emptied, and a run reads it."""
    with installation.run_turn:
        empty(any_commit(installation, chance), chance)
        note_end(installation, installation.commands.batch_run("--full"))
    yield


@contextmanager
def run_ahead(installation: Installation, chance: random.Random) -> Iterator[None]:
    """A run whose cut the archiver has not reached."""
    del chance
    with installation.run_turn:
        installation.processes.signal("archiver", signal.SIGSTOP)
        time.sleep(2)
        note_end(installation, installation.commands.batch_run())
    installation.processes.signal("archiver", signal.SIGCONT)
    yield


@contextmanager
def run_now(installation: Installation, chance: random.Random) -> Iterator[None]:
    """A run, under load, which has to succeed."""
    del chance
    with installation.run_turn:
        ended = installation.commands.batch_run()
    if ended.code:
        raise BrokenPromise(f"a run failed that nobody hurt: {ended.output[-500:]}")
    yield


def note_end(installation: Installation, ended: CommandResult) -> None:
    """A run that may fail; how it ended is kept with the shot."""
    installation.notes.append(f"the run ended with {ended.code}: {ended.output[-500:]}")


SABOTAGES = [
    Sabotage("dedup off", ("speed",), a_wrong_answer, wait, needs_master=False),
    Sabotage("fencing off", ("speed", "batch"), wrong_or_back, two_writers),
    Sabotage("atomic step split in two", ("speed",), a_wrong_answer, wait, needs_master=False),
    Sabotage("cut off by one", ("speed",), a_wrong_answer, wait, needs_master=False),
    Sabotage("poison takes its neighbours", ("speed",), a_wrong_answer, wait, needs_master=False),
    Sabotage("merge drops a generation", ("serving",), a_wrong_answer, run_now),
    Sabotage("a lost Redis is not reported", ("serving",), wrong_or_back, lose_redis),
    Sabotage("a page leaves out a row", ("serving",), a_wrong_answer, wait, needs_master=False),
    Sabotage("a window is short by an hour", ("serving",), a_wrong_answer, wait, needs_master=False),
    Sabotage("days are those of UTC", ("serving",), a_wrong_answer, wait, needs_master=False),
    Sabotage("alerts forget their notifications", ("alerts",), notified_wrongly, kill_alerts),
    Sabotage("acknowledged before the broker", ("collector",), something_lost, kill_collector),
    Sabotage("auto-commit on", ("archiver",), lost_or_refused, kill_behind),
    Sabotage("failOnDataLoss off", ("archiver",), something_lost, forget),
    Sabotage("dead letters dropped", ("archiver",), poison_missed, wait),
    Sabotage("dead letters believed", ("archiver",), poison_missed, strike_forged_letters),
    Sabotage("fsck off", ("archiver", "batch"), a_wrong_answer, run_from_damaged),
    Sabotage("publish before verify", ("batch",), a_wrong_answer, run_ahead),
    Sabotage("an overtake loads no seen ids", ("speed", "batch"), a_wrong_answer, overtaken),
    Sabotage("a switch keeps the seen ids", ("speed", "batch"), a_wrong_answer, evolved),
    Sabotage("batch cut off by one", ("batch",), wrong_or_refused, run_now),
    Sabotage("duplicates count in batch runs", ("batch",), wrong_or_refused, run_now),
]
BY_NAME = {each.name: each for each in SABOTAGES}
SOONEST = (
    "dedup off", "cut off by one", "poison takes its neighbours", "days are those of UTC",
    "a window is short by an hour",
)  # fmt: skip
"""Those that show soonest: `make test-faults` tries these."""
LASTING_HARM = (forget, run_from_damaged)
"""What an intact installation cannot repair without a person: it reports the damage, and stays as it is."""
CONTROLS = [
    [each for each in SABOTAGES if each.provoke not in LASTING_HARM],
    *([each for each in SABOTAGES if each.provoke is harm] for harm in LASTING_HARM),
]
"""What can be done to one intact installation, one after another, as a control."""


class StruckNothing(Exception):
    """A sabotage did not break what it names: whether it is caught says nothing."""


def sabotage_module() -> ModuleType:
    """The module that breaks builds, in this process, where it breaks nothing."""
    spec = importlib.util.spec_from_file_location("broken_builds", FOLDER / "sitecustomize.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(FOLDER / "sitecustomize.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def environments(group: Sequence[Sabotage], struck: Path) -> dict[str, dict[str, str]]:
    """For the installation: each part has those sabotages that are its own, and writes down in `struck` what it did."""
    names: dict[str, list[str]] = {}
    for each in group:
        for part in each.parts:
            names.setdefault(part, []).append(each.name)
    paths = os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        part: {"PYTHONPATH": paths, "TORTURE_SABOTAGE": ",".join(chosen), "TORTURE_STRUCK": str(struck)}
        for part, chosen in names.items()
    }


def caught(folder: Path, group: Sequence[Sabotage], seed: int = 11) -> dict[str, bool]:
    """Run the programme on an installation that is broken in these ways; which of them it found.

    StruckNothing: one of them is not broken in the way that its name says.
    """
    struck = folder.with_name(f"{folder.name}.struck")
    struck.unlink(missing_ok=True)
    try:
        return _provoked(folder, group, environments(group, struck), seed)
    finally:
        check_struck(group, struck)


def check_struck(group: Sequence[Sabotage], struck: Path) -> None:
    """Every patch of these sabotages was applied by some process, and none of them failed."""
    lines = struck.read_text(encoding="utf-8").splitlines() if struck.exists() else []
    notes = [json.loads(line) for line in lines]
    if failed := [f"{note['sabotage']} in {note['module']}: {note['error']}" for note in notes if note["error"]]:
        raise StruckNothing(f"The code of a sabotage does not fit the platform any more: {failed[0]}")
    applied = {(note["sabotage"], note["module"]) for note in notes}
    patches = sabotage_module().SABOTAGES
    for each in group:
        if idle := [module for module in patches[each.name] if (each.name, module) not in applied]:
            raise StruckNothing(
                f"Sabotage {each.name!r} struck nothing in {', '.join(idle)}: none of the processes "
                f"({', '.join(each.parts)}) imported a module of that name."
            )


def taken_for(folder: Path, group: Sequence[Sabotage], seed: int = 11) -> dict[str, bool]:
    """Do the same to an intact installation; returns which sabotages it is mistaken for. It must be none."""
    return _provoked(folder, group, {}, seed)


def _provoked(folder: Path, group: Sequence[Sabotage], given: dict[str, dict[str, str]], seed: int) -> dict[str, bool]:
    provoking = {each.provoke: each.name for each in reversed(group)}  # each once, however many it brings to light
    faults = [Fault(name, "failpoint", provoke, LASTING_S, GIVE_UP_S) for provoke, name in provoking.items()]
    is_lean = not any(each.needs_master for each in group)
    lean = {"archiver_enabled": False, "alerts_enabled": False} if is_lean else {}
    installation = Installation(folder, environments=given, overrides=lean)
    try:
        installation.start()
        options = ProgrammeOptions(seed, len(faults), 10, rate=60, patience_s=GIVE_UP_S)

        def is_enough(so_far: ProgrammeResult) -> bool:
            return all(each.shows(so_far, installation) for each in group)

        result = Programme(installation, options, faults, is_enough=is_enough).run()
        result.write(folder.with_name(f"{folder.name}.json"))
        return {each.name: each.shows(result, installation) for each in group}
    finally:
        installation.throw_away()
