"""Sealing: old commits go into segments, and what Delta no longer needs of them leaves the log.

The steps, each safe to repeat after a crash:

1. The commits up to Delta's checkpoint before its newest are written into segments, once the table is known to be
   sound and that checkpoint has exactly our files.
2. A new summary is written. Until then readers read the new segments themselves.
3. The lines of sealed commits leave the ledger's file.
4. Checkpoints but the newest two, and commits and summaries of Delta below those, leave the log, after a time in which
   those who just listed the log have read it. Commit 0, which says what the table is, stays.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from infra.disk import sync_file, sync_folder
from infra.failpoints import reach
from master_dataset.errors import MasterDatasetError
from master_dataset.table.checks.fsck import check_checkpoints, refuse_damage
from master_dataset.table.coverage import of_history
from master_dataset.table.delta_log import Commit, commit_file, parse_commit, remember_only
from master_dataset.table.history import History, read_history
from master_dataset.table.ledger import complete_ledger, forget_sealed_lines
from master_dataset.table.proofs import Kind, Proof
from master_dataset.table.segments import SealedCommit, sealed_until, store_of, write_segment
from master_dataset.table.summary import Summary, write_summary

SEGMENT_COMMITS = 500
"""How many commits a segment holds."""
CHECKPOINT = ".checkpoint.parquet"
GRACE_S = 600.0
"""How long a checkpoint must have been there before what it replaces is removed: a reader may have listed the log."""

log = structlog.get_logger()


class CannotSeal(MasterDatasetError):
    """What would be sealed is not what Delta or the ledger has: everything stays as it is."""


class Tidied(NamedTuple):
    """What was done: commits sealed, and files removed from the log."""

    sealed: int = 0
    removed: int = 0


def tidy(
    table: Path, *, segment_commits: int = SEGMENT_COMMITS, min_commits: int | None = None, grace_s: float = GRACE_S
) -> Tidied:
    """Seal what is old and remove what it replaces. The caller holds `commit_lock`."""
    store_of(table).sweep()  # what a kill left of a segment or a summary
    sealed = seal(table, segment_commits=segment_commits, min_commits=min_commits)
    return Tidied(sealed, trim_log(table, grace_s=grace_s))


def seal(table: Path, *, segment_commits: int = SEGMENT_COMMITS, min_commits: int | None = None) -> int:
    """Seal the commits up to Delta's checkpoint before the newest, if they fill a segment. Returns how many.

    With `min_commits`, so many are enough. The caller holds `commit_lock`.
    """
    enough = segment_commits if min_commits is None else min_commits
    checkpoints = list_checkpoints(table)
    before = sealed_until(table)
    if len(checkpoints) < 2 or checkpoints[-2] - before < max(1, enough):
        if read_history(table).first <= before:  # a crash came before the summary
            _sum_up(table)
        forget_sealed_lines(table)
        return 0
    last = checkpoints[-2]
    refuse_damage(table.name, table)
    history = read_history(table)
    complete_ledger(table, history.in_log)
    history = _until(read_history(table), last)
    if not of_history(history).is_sound:
        raise CannotSeal(
            f"The commits of {str(table)!r} up to {last} are not sealed yet: a later repair fills a gap among them."
        )
    _compare_with_checkpoint(history, last)
    commits = history.in_log
    # Step 1. The segments. A crash leaves some of them; the next time goes on after those.
    reach("seal.before_segment")
    for begin in range(0, len(commits), segment_commits):
        chunk = commits[begin : begin + segment_commits]
        write_segment(table, [_sealed(table, commit, history.ledger.get(commit.version)) for commit in chunk])
        reach("seal.after_segment")
    # Step 2. Their summary. Step 3. Nothing of them in the ledger's file and in the cache.
    _sum_up(table)
    reach("seal.after_summary")
    forget_sealed_lines(table)
    remember_only(table, last)
    log.info("sealed", table=table.name, commits=len(commits), until=last)
    return len(commits)


def _sealed(table: Path, commit: Commit, proof: Proof | None) -> SealedCommit:
    """A commit as it is in the log now, after it was compared with what was checked."""
    text = commit_file(table, commit.version).read_bytes()
    found = parse_commit(commit.version, text, None)
    is_void = found.proof is not None and found.proof.kind == Kind.VOID
    if found.damage or found != commit or (found.proof != proof and not is_void):
        raise CannotSeal(
            f"Commit {commit.version} of {str(table)!r} is not what it was when it was last read, or not what the "
            "ledger has. Nothing more was sealed; `tidemark master fsck --deep` says what is damaged."
        )
    return SealedCommit(commit.version, proof.to_json() if proof else "", text.decode())


def _sum_up(table: Path) -> None:
    """Write the summary of everything that is sealed."""
    history = read_history(table)
    history = _until(history, history.sealed)
    files = history.files
    there = {entry.name for entry in os.scandir(table)}
    files.replaced = {path: each for path, each in files.replaced.items() if path in there}
    write_summary(table, Summary(history.sealed, of_history(history).to_json()), files)


def _until(history: History, version: int) -> History:
    """The history as it was at a version."""
    commits = [commit for commit in history.commits if commit.version <= version]
    return replace(history, commits=commits, ledger={each: p for each, p in history.ledger.items() if each <= version})


def _compare_with_checkpoint(history: History, version: int) -> None:
    """Delta's checkpoint must have exactly the files that our commits up to it leave: soon nothing else has them."""
    table = history.table
    ours = {file.path: file.size for file in history.files.live.values()}
    if (theirs := _files_of_checkpoint(table, version)) != ours:
        raise CannotSeal(
            f"Delta's checkpoint {version} of {str(table)!r} has {len(theirs)} files, our commits up to it have "
            f"{len(ours)}, or others. Nothing was sealed; `tidemark master repair {table.name}` makes a new one."
        )


def _files_of_checkpoint(table: Path, version: int) -> dict[str, int]:
    try:
        with pq.ParquetFile(_checkpoint_file(table, version)) as file:
            found = file.read(columns=["add.path", "add.size"])["add"].to_pylist()
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise CannotSeal(f"Delta's checkpoint {version} of {str(table)!r} cannot be read: {error}") from None
    return {unquote(add["path"]): add["size"] for add in found if add is not None and add["path"] is not None}


# ---- the log ---------------------------------------------------------------------


def list_checkpoints(table: Path) -> list[int]:
    """The versions of which Delta has a checkpoint in one file, in order."""
    names = (
        path.name.removesuffix(".checkpoint.parquet") for path in (table / "_delta_log").glob("*.checkpoint.parquet")
    )
    return sorted(int(name) for name in names if name.isdigit())


def trim_log(table: Path, *, grace_s: float = GRACE_S) -> int:
    """Remove what Delta no longer needs of sealed commits. Returns how many files. The caller holds `commit_lock`."""
    base = _base(table, grace_s)
    old = [] if base is None else [*_below(table, base, sealed_until(table))]
    if base is not None and old:
        if bad := [*check_checkpoints(table, all_of_them=True, above=base)]:
            raise CannotSeal(f"The log of {str(table)!r} was not shortened: {bad[0].text}")
        # What stays is on the disk before what it replaces goes: Delta syncs nothing.
        for version in (each for each in list_checkpoints(table) if each >= base):
            sync_file(_checkpoint_file(table, version))
        sync_folder(table / "_delta_log")
    reach("seal.before_removal")
    for path in old:
        path.unlink(missing_ok=True)
    if old:
        sync_folder(table / "_delta_log")
    return len(old)


def _base(table: Path, grace_s: float) -> int | None:
    """The checkpoint from which on everything stays: not the newest, and old enough."""
    for version in reversed(list_checkpoints(table)[:-1]):
        if time.time() - _checkpoint_file(table, version).stat().st_mtime >= grace_s:
            return version
    return None


def _below(table: Path, base: int, sealed: int) -> Iterator[Path]:
    """The files of Delta's log below a checkpoint that no reader needs: the oldest first."""
    for entry in sorted(os.scandir(table / "_delta_log"), key=lambda entry: entry.name.lstrip(".")):
        name = entry.name.lstrip(".")
        number, _, kind = name.partition(".")
        if not number.isdigit() or int(number) == 0:
            continue
        is_commit = kind in ("json", "json.crc")
        if int(number) <= min(base, sealed) if is_commit else int(number) < base:
            yield Path(entry.path)


def _checkpoint_file(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020}{CHECKPOINT}"
