"""Make a damaged Delta log readable again: confusing files leave the table, void commits replace damaged ones.

Nothing is deleted: what leaves the table is in `<source>.proofs/taken_out`.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from infra.disk import sync_file, sync_folder
from infra.failpoints import reach
from master_dataset.errors import MasterDatasetError
from master_dataset.table.checks.fsck import TableFinding, Trouble, check_checkpoints, missing_from_log
from master_dataset.table.delta_log import commit_file
from master_dataset.table.history import read_history
from master_dataset.table.ledger import read_ledger_file
from master_dataset.table.paths import own_folder
from master_dataset.table.proofs import Kind, Proof
from master_dataset.table.segments import sealed_commits, sealed_until

DAMAGED_COMMITS = (Trouble.EMPTY_COMMIT, Trouble.TORN_COMMIT, Trouble.MISSING_COMMIT)


def taken_out(table: Path) -> Path:
    """The folder with everything that a repair took out of a table."""
    return own_folder(table) / "taken_out"


def take_out_strays(table: Path, findings: Iterable[TableFinding]) -> list[str]:
    """Take out stray data files and corrupt checkpoints. Returns their names."""
    log, moved = table / "_delta_log", []
    for finding in findings:
        if finding.trouble is Trouble.STRAY_FILE:
            _take_out(table, table / finding.where)
        elif finding.trouble is Trouble.CORRUPT_CHECKPOINT:
            _take_out(table, log / finding.where)
            _take_out(table, log / "_last_checkpoint")
        else:
            continue
        moved.append(finding.where)
    return moved


def take_out_unsynced(table: Path) -> list[str]:
    """Take out what a power cut leaves half written and nothing depends on. Returns names; the caller holds the locks.

    Delta syncs nothing. Its checkpoints are a cache of the log. A newest commit without a line in the ledger was
    perhaps not synced yet; its records are archived again, from where the commits before it end.
    """
    taken: list[str] = []
    history = read_history(table)
    commits, ledger = history.in_log, history.ledger
    if commits and commits[-1].damage and commits[-1].version > max(ledger, default=0):
        version = commits[-1].version
        _take_out(table, commit_file(table, version))
        forget_summaries(table, version)
        taken.append(f"{version:020}.json")
    while bad := list(check_checkpoints(table, all_of_them=False)):  # below the newest there may be another
        taken += take_out_strays(table, bad)
    return taken + restore_log(table)


def restore_log(table: Path) -> list[str]:
    """Write sealed commits back into the log where Delta needs them, because its checkpoints are gone. Returns names.

    A crash leaves some of them; the next repair writes the rest.
    """
    needed = set(missing_from_log(table, sealed_until(table)))
    for sealed in sealed_commits(table, min(needed) - 1) if needed else ():
        if sealed.version in needed:
            _write_commit(commit_file(table, sealed.version), sealed.text)
    if needed:
        sync_folder(table / "_delta_log")
    return [f"{version:020}.json" for version in sorted(needed)]


def void_commits(table: Path, findings: Iterable[TableFinding]) -> list[int]:
    """Replace every commit that cannot be read by one that does nothing. Returns their versions."""
    voided = []
    for finding in findings:
        if finding.trouble not in DAMAGED_COMMITS or finding.version is None:
            continue
        if finding.version == 0:
            raise MasterDatasetError(
                f"Commit 0 of {str(table)!r}, which defines the table, is damaged. Move this folder and "
                f"{str(own_folder(table))!r} away; the archiver creates a new table from what Kafka still holds, and "
                f"the data files stay in the old one."
            )
        info = {
            "timestamp": round(time.time() * 1000),
            "operation": "TIDEMARK VOID",
            "operationParameters": {},
            "userMetadata": Proof(Kind.VOID).to_json(),
        }
        _replace_commit(table, finding.version, [{"commitInfo": info}])
        voided.append(finding.version)
    return voided


def restore_proofs(table: Path, findings: Iterable[TableFinding]) -> list[int]:
    """Give altered commits the proof that the ledger has, whose digest is right. Returns their versions.

    The next check compares their files with that proof.
    """
    ledger, restored = read_ledger_file(table, digest_only=True), []
    for finding in findings:
        if finding.trouble is Trouble.ALTERED_COMMIT and finding.version is not None:
            lines = commit_file(table, finding.version).read_bytes().splitlines()
            actions = [json.loads(line) for line in lines if line.strip()]
            for action in actions:
                if "commitInfo" in action:
                    action["commitInfo"]["userMetadata"] = ledger[finding.version].to_json()
            _replace_commit(table, finding.version, actions)
            restored.append(finding.version)
    return restored


def _replace_commit(table: Path, version: int, actions: Iterable[Any]) -> None:
    """Take a commit's file out and write another one. A crash in between leaves a missing commit."""
    path = commit_file(table, version)
    _take_out(table, path)
    reach("repair.taken_out")
    _write_commit(path, "".join(json.dumps(action) + "\n" for action in actions))
    sync_folder(path.parent)


def _write_commit(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    path.parent.mkdir(exist_ok=True)
    partial.write_text(text, encoding="utf-8")
    sync_file(partial)
    partial.rename(path)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the file that was there before


def forget_summaries(table: Path, version: int) -> None:
    """Take out Delta's own summaries of this version and later ones: they describe the log as it was."""
    log = table / "_delta_log"
    for summary in [*log.glob("*.checkpoint*"), *log.glob("*.crc")]:
        number = summary.name.partition(".")[0]
        if number.isdigit() and int(number) >= version:
            _take_out(table, summary)
    _take_out(table, log / "_last_checkpoint")
    sync_folder(log)


def _take_out(table: Path, path: Path) -> None:
    """Move a file, and Hadoop's checksum of it, beside the table."""
    target = taken_out(table) / time.strftime("%Y%m%dT%H%M%S")
    for each in (path, path.with_name(f".{path.name}.crc")):
        if each.is_file():
            target.mkdir(parents=True, exist_ok=True)
            free, number = target / each.name, 1
            while free.exists():
                free, number = target / f"{number}.{each.name}", number + 1
            shutil.move(each, free)
