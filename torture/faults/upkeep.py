"""Commands that people run beside the services: killed in the middle, under load, and then run again.

They must leave nothing that anybody takes for whole, and the second time they must do all of it.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import httpx

from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.publish_log import Entry
from master_dataset.table.checks.fsck import CHECKPOINT_FILE, TableFinding, quick_check
from master_dataset.table.delta_log import live_files, read_commits
from master_dataset.table.history import read_history, read_live_files
from master_dataset.table.paths import table_path
from master_dataset.table.proofs import Kind
from master_dataset.table.sealing import list_checkpoints
from master_dataset.table.segments import sealed_until
from torture.commands import output_of
from torture.errors import BrokenPromise, NotInTime, TortureError
from torture.fault import RUN_S, Fault, Strike
from torture.faults.damage import REPAIR_TIMEOUT_S, any_commit, command, empty, tear
from torture.installation import Installation
from torture.wait import wait_for
from views.sample_events import START

SWITCH_S = 30.0
"""Within so long readers switch to the run that was chosen."""
MAX_RUNS = 3
"""Maximum of runs to make before there are enough to roll back or to prune."""
OLD_RUNS = 3
SEAL_S = 150.0
"""Within so long the archiver makes a hundred commits, and Delta two checkpoints."""

TableHarm = Callable[[Installation, random.Random], None]


def killed_at(installation: Installation, name: str, *arguments: str) -> None:
    """Run a command that is killed at a failpoint; TortureError: it did not get there."""
    armed = installation.failpoints_dir / name
    armed.touch()
    try:
        process = installation.commands.spawn(*arguments)
        said = output_of(process, REPAIR_TIMEOUT_S)
        is_there = not armed.exists()
    finally:
        armed.unlink(missing_ok=True)
    if not is_there or process.returncode != -signal.SIGKILL:
        raise TortureError(
            f"tidemark {' '.join(arguments)} did not die at {name}: it ended with {process.returncode}: {said[-200:]}"
        )


# ---- the master dataset --------------------------------------------------------


@contextmanager
def compaction_killed(name: str, installation: Installation, chance: random.Random) -> Iterator[None]:
    """Kill a compaction, while the archiver and runs continue."""
    del chance
    compact = ("master", "compact", installation.source_name)
    table = table_path(installation.settings, installation.source_name)
    killed_at(installation, name, *compact)
    if damage := _damage(table):
        raise BrokenPromise(f"A compaction was killed at {name}, and the table is damaged: {damage[0].text}")
    yield
    before = len(read_live_files(table))
    command(installation, *compact, tries=1)
    installation.notes.append(f"{before} files became {len(read_live_files(table))}")


@contextmanager
def sealing_killed(name: str, installation: Installation, chance: random.Random) -> Iterator[None]:
    """Kill the sealing of old commits, while the archiver and runs continue; the next one finishes it."""
    table = table_path(installation.settings, installation.source_name)

    def is_due() -> bool:
        return max([-1, *list_checkpoints(table)[:-1]]) > sealed_until(table)

    wait_for("two checkpoints of the master table", is_due, SEAL_S)
    with compaction_killed(name, installation, chance):
        yield
    if is_due() and sealed_until(table) < 0:
        raise BrokenPromise(f"Sealing was killed at {name}, and the next compaction sealed nothing")


@contextmanager
def repair_killed(
    name: str, harm: TableHarm, installation: Installation, chance: random.Random, *, is_whole: bool = False
) -> Iterator[None]:
    """Damage the table and kill the repair half-way. Checks must still find damage, unless the table `is_whole`."""
    repair = ("master", "repair", installation.source_name)
    with installation.run_turn:
        harm(installation, chance)
        try:
            killed_at(installation, name, *repair)
            if not is_whole and not _damage(table_path(installation.settings, installation.source_name)):
                raise BrokenPromise(f"A repair was killed at {name}, and nothing tells that the table is not whole")
            yield
        finally:
            command(installation, *repair)


def _damage(table: Path) -> list[TableFinding]:
    return [finding for finding in quick_check(table) if finding.is_damage]


def one_commit(installation: Installation, chance: random.Random) -> None:
    """Empty a commit that is in a checkpoint of Delta's, if there is one: the checkpoint has its content."""
    log = table_path(installation.settings, installation.source_name) / "_delta_log"
    newest = max(
        (int(found[1]) for path in log.iterdir() if (found := CHECKPOINT_FILE.fullmatch(path.name))), default=0
    )
    commits = read_history(log.parent).in_log  # the others are sealed, and their files may be gone
    appended = [c.version for c in commits if c.proof and c.proof.kind == Kind.APPEND and c.added]
    below = [version for version in appended if version <= newest]
    path = log / f"{chance.choice(below[-20:]):020}.json" if below else any_commit(installation, chance)
    installation.notes.append(f"{path.name} emptied, the newest checkpoint is of {newest}")
    empty(path, chance)


def two_commits(installation: Installation, chance: random.Random) -> None:
    """Empty two commits, so that a repair has something left to do after the first."""
    first = any_commit(installation, chance)
    for _ in range(20):
        if (second := any_commit(installation, chance)) != first:
            break
    else:
        raise TortureError("the table has only one commit with records")
    for path in (first, second):
        empty(path, chance)


def a_compaction(installation: Installation, chance: random.Random) -> None:
    """Compact, and truncate a file of the compaction: the repair has to undo the compaction."""
    command(installation, "master", "compact", installation.source_name, tries=1)
    table = table_path(installation.settings, installation.source_name)
    commits = read_commits(table)
    made = {
        file.path for commit in commits if commit.proof and commit.proof.kind == Kind.COMPACT for file in commit.added
    }
    there = sorted(made & live_files(commits).keys())
    if not there:
        raise TortureError("the compaction made no file")
    tear(table / chance.choice(there), chance)


# ---- the batch views -----------------------------------------------------------


@contextmanager
def pruning_killed(name: str, installation: Installation, chance: random.Random) -> Iterator[None]:
    """Kill pruning half-way; pruning again removes the rest."""
    del chance
    prune = ("batch", "prune", "--keep", "1", "--source", installation.source_name)
    folder = BatchFolder.of(installation.settings, installation.source_name)
    with installation.run_turn:
        _make_runs(installation, lambda: len(_manifests(folder)) >= OLD_RUNS)
        before = _manifests(folder)
        killed_at(installation, name, *prune)
        gone = before - _manifests(folder)
        if not gone:
            raise TortureError(f"no run could go: there are {sorted(path.name for path in before)}")
        installation.notes.append(f"{len(gone)} runs went")
        yield
        command(installation, *prune)


@contextmanager
def rolled_back(installation: Installation, chance: random.Random, *, by_run: bool = False) -> Iterator[None]:
    """Roll readers back to the run before, and forward again by the command or by a published run."""
    del chance
    rollback = ("batch", "rollback", "--source", installation.source_name)
    folder = BatchFolder.of(installation.settings, installation.source_name)
    with installation.run_turn:
        older = _run_before(installation, folder)
        killed_at(installation, "rollback.before_pin", *rollback, str(older.run))
        command(installation, *rollback, str(older.run), tries=1)
        try:
            _wait_served(installation, older.run)
            installation.notes.append(f"readers were on run {older.run}")
            yield
            if by_run:
                _free_by_run(installation, folder)
            else:
                killed_at(installation, "rollback.after_unpin", *rollback, "--latest")
        finally:
            command(installation, *rollback, "--latest", tries=1)
        _wait_served(installation, publish_log.last(folder).run)


def _free_by_run(installation: Installation, folder: BatchFolder) -> None:
    ended = installation.commands.batch_run()
    if ended.code:
        raise TortureError(f"the run that was to set readers free ended with {ended.code}: {ended.output[-200:]}")
    if pinned := publish_log.pinned(folder):
        raise BrokenPromise(f"A run was published, and readers are still pinned to run {pinned.run}")


def _run_before(installation: Installation, folder: BatchFolder) -> Entry:
    """The newest run but one with the same views: the programme does not know others."""

    def found() -> Entry | None:
        *before, newest = publish_log.read(folder)
        whole = (entry for entry in reversed(before) if folder.manifest(entry.run).is_file())
        return next((entry for entry in whole if entry.catalog == newest.catalog), None)

    _make_runs(installation, lambda: found() is not None)
    entry = found()
    if entry is None:
        raise TortureError("there is no run to roll back to")
    return entry


def _make_runs(installation: Installation, is_enough: Callable[[], bool]) -> None:
    for _ in range(MAX_RUNS):
        if is_enough():
            return
        installation.commands.batch_run()


def _manifests(folder: BatchFolder) -> set[Path]:
    return set(folder.runs.glob("*.json"))


def _wait_served(installation: Installation, run: int) -> None:
    """Wait until answers come from this run."""
    served: list[int] = []
    view = installation.declared.views_of(installation.source_name)[0].name
    query = {"from": START.isoformat(), "to": (START + timedelta(days=1)).isoformat()}

    def is_served() -> bool:
        try:
            answer = client.get(f"/views/{view}/query", params=query)
        except httpx.HTTPError:
            return False
        if answer.status_code == httpx.codes.OK:
            served.append(answer.json()["meta"]["batch"]["run"])
        return bool(served) and served[-1] == run

    with installation.client("serving") as client:
        try:
            wait_for(f"answers of run {run}", is_served, SWITCH_S, every_s=0.2)
        except NotInTime:
            if not served:
                raise
            raise BrokenPromise(f"Readers were switched to run {run}; they serve run {served[-1]}") from None


def _of_repair(name: str, harm: TableHarm, *, is_whole: bool = False) -> Strike:
    return partial(repair_killed, name, harm, is_whole=is_whole)


FAULTS = [
    *(
        Fault(f"a compaction killed at {name}", "concurrency", partial(compaction_killed, name), 2, cost_s=RUN_S)
        for name in ("compact.before_commit", "compact.before_ledger")
    ),
    *(
        Fault(f"sealing killed at {name}", "concurrency", partial(sealing_killed, name), 2, cost_s=RUN_S + SEAL_S)
        for name in ("seal.before_segment", "seal.after_segment", "seal.after_summary", "seal.before_removal")
    ),
    *(
        Fault(f"a repair killed at {name}", "damage", _of_repair(name, harm), 3, recovery_s=150, cost_s=RUN_S)
        for name, harm in (
            ("repair.taken_out", one_commit),
            ("repair.after_void", one_commit),
            ("repair.between", two_commits),
        )
    ),
    Fault(
        "a repair killed at repair.after_take_back",
        "damage",
        _of_repair("repair.after_take_back", a_compaction, is_whole=True),
        3,
        recovery_s=150,
        cost_s=RUN_S,
    ),
    *(
        Fault(f"pruning killed at {name}", "concurrency", partial(pruning_killed, name), 2, cost_s=RUN_S)
        for name in ("prune.after_manifests", "prune.between")
    ),
    Fault("readers rolled back", "concurrency", rolled_back, 6, cost_s=RUN_S),
    Fault("readers rolled back until a run", "concurrency", partial(rolled_back, by_run=True), 6, cost_s=RUN_S),
]
