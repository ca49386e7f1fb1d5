"""Damage: commits emptied or truncated, files truncated or changed, in the master dataset and batch views.

The platform has to notice and to refuse, until somebody repairs: `tidemark master repair`, or a run from scratch.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.manifests import read_manifest
from infra.process_status import read_status
from master_dataset.table.delta_log import live_files, read_commits
from master_dataset.table.history import read_history
from master_dataset.table.paths import table_path
from torture.commands import kill_group
from torture.errors import BrokenPromise, NotInTime, TortureError
from torture.fault import RUN_S, Fault, Strike
from torture.installation import Installation
from torture.wait import wait_for

REPAIR_TIMEOUT_S = 180
ARCHIVER_S = 40.0
FOLLOWS = "it follows the source"
TRIES = 3

FileHarm = Callable[[Path, random.Random], None]
FileFinder = Callable[[Installation, random.Random], Path]


def empty(path: Path, chance: random.Random) -> None:
    """Empty a file, like a write that never reached the disk."""
    del chance
    _overwrite(path, b"")


def tear(path: Path, chance: random.Random) -> None:
    """Truncate a file."""
    content = path.read_bytes()
    _overwrite(path, content[: chance.randrange(1, len(content) - 1)])  # the last byte may be only a newline


def change(path: Path, chance: random.Random) -> None:
    """Change some bytes in the middle."""
    content = bytearray(path.read_bytes())
    begin = chance.randrange(len(content) // 4, max(3 * len(content) // 4, 1))
    for place in range(begin, min(begin + 200, len(content))):
        content[place] ^= 0x5A
    _overwrite(path, bytes(content))


def remove(path: Path, chance: random.Random) -> None:
    """Remove a file."""
    del chance
    path.unlink()
    _drop_checksum(path)


def any_commit(installation: Installation, chance: random.Random) -> Path:
    """A commit of the master dataset that added records."""
    table = table_path(installation.settings, installation.source_name)
    versions = [commit.version for commit in read_history(table).in_log if commit.proof and commit.added]
    if not versions:
        raise TortureError(f"{table} has no commit with records yet. Let the load run for some seconds first.")
    return table / "_delta_log" / f"{chance.choice(versions[-20:]):020}.json"


def any_data_file(installation: Installation, chance: random.Random) -> Path:
    """A data file of the master dataset."""
    table = table_path(installation.settings, installation.source_name)
    names = sorted(live_files(read_commits(table)))
    if not names:
        raise TortureError(f"{table} has no data file yet: let the load run for some seconds first.")
    return table / chance.choice(names)


@contextmanager
def strike_master(
    find: FileFinder, harm: FileHarm, installation: Installation, chance: random.Random
) -> Iterator[None]:
    """Damage the table. A run that starts now must refuse it, and so must the archiver after a restart."""
    with installation.run_turn:
        harmed = find(installation, chance)
        harm(harmed, chance)
        try:
            is_killed = chance.random() < 0.5 and installation.processes.kill("archiver")
            killed_at = time.time()
            ended = installation.commands.batch_run()
            installation.notes.append(f"{harmed.name} harmed, the run ended with {ended.code}")
            if not ended.code:
                raise BrokenPromise(
                    f"{harmed} was harmed. A run that begins then should refuse the table, and it was published: "
                    f"{ended.output[-1000:]}"
                )
            if is_killed:
                _check_archiver(installation, harmed, killed_at)
            yield
        finally:
            command(installation, "master", "repair", installation.source_name)


def _check_archiver(installation: Installation, harmed: Path, since: float) -> None:
    """An archiver that was restarted must refuse the table; that it has not started yet is no failure."""
    try:
        said = wait_for("what the archiver says", lambda: _archiver_says(installation, since), ARCHIVER_S, every_s=0.1)
    except NotInTime as error:
        said = str(error)
    if said == FOLLOWS:
        raise BrokenPromise(f"{harmed} was harmed. An archiver that begins then should refuse the table; it follows it")
    installation.notes.append(f"the archiver: {said[:150]}")


def _archiver_says(installation: Installation, since: float) -> str:
    """Why it does not follow the source, or that it does; empty while it is starting."""
    status = read_status(installation.home.run / "archiver.json")
    if status is None or status.at <= since:
        return ""
    source = status.sources.get(installation.source_name, {})
    return str(status.error or source.get("refused") or (FOLLOWS if source.get("cut") else ""))


@contextmanager
def strike_index(harm: FileHarm, installation: Installation, chance: random.Random) -> Iterator[None]:
    """Damage an index file of the newest run, and restart the serving layer, which has to read it."""
    with installation.run_turn:
        folder = BatchFolder.of(installation.settings, installation.source_name)
        harm(_index_file(installation, folder, chance), chance)
        installation.processes.kill("serving")
        try:
            yield
        finally:
            command(installation, "batch", "run", "--full", "--source", installation.source_name)


def _index_file(installation: Installation, folder: BatchFolder, chance: random.Random) -> Path:
    if not publish_log.last(folder).run:
        installation.commands.batch_run()
    newest = publish_log.last(folder).run
    if not newest:
        raise TortureError(f"No batch run of {folder.source!r} was published yet.")
    names = [name for data in read_manifest(folder, newest).views for name in data.index]
    return folder.indexes / chance.choice(sorted(names))


def command(installation: Installation, *arguments: str, tries: int = TRIES) -> None:
    """A command that must succeed. It is retried, because services that it needs may be restarting."""
    said = ""
    for _ in range(tries):
        process = installation.commands.spawn(*arguments)
        try:
            said, _errors = process.communicate(timeout=REPAIR_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            kill_group(process)
            process.communicate()
        if process.returncode == 0:
            return
    raise BrokenPromise(f"tidemark {' '.join(arguments)} failed, {tries} times tried. It said: {said[-1000:]}")


def _overwrite(path: Path, content: bytes) -> None:
    """Replace the file: a process that has the old one open keeps reading that."""
    partial_file = path.with_name(f".{path.name}.harmed")
    partial_file.write_bytes(content)
    partial_file.chmod(path.stat().st_mode)
    partial_file.replace(path)
    _drop_checksum(path)


def _drop_checksum(path: Path) -> None:
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def _of_master(find: FileFinder, harm: FileHarm) -> Strike:
    return partial(strike_master, find, harm)


def _of_index(harm: FileHarm) -> Strike:
    return partial(strike_index, harm)


FAULTS = [
    Fault("commit emptied", "damage", _of_master(any_commit, empty), 3, recovery_s=150, cost_s=RUN_S + 30),
    Fault("commit torn", "damage", _of_master(any_commit, tear), 3, recovery_s=150, cost_s=RUN_S + 30),
    Fault("commit removed", "damage", _of_master(any_commit, remove), 3, recovery_s=150, cost_s=RUN_S + 30),
    Fault("Parquet file truncated", "damage", _of_master(any_data_file, tear), 3, recovery_s=150, cost_s=RUN_S + 30),
    Fault("Parquet file removed", "damage", _of_master(any_data_file, remove), 3, recovery_s=150, cost_s=RUN_S + 30),
    Fault("index truncated", "damage", _of_index(tear), 3, recovery_s=150, cost_s=RUN_S + 30),
    Fault("index emptied", "damage", _of_index(empty), 3, recovery_s=150, cost_s=RUN_S + 30),
    Fault("index changed", "damage", _of_index(change), 3, recovery_s=150, cost_s=RUN_S + 30),
]
