"""A master table written by hand: a log, a ledger and files that are just long enough. No Spark, no Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from master_dataset.table.checks.fsck import Trouble, quick_check
from master_dataset.table.checks.repair import commits_to_restore, compactions_to_undo
from master_dataset.table.checks.void_commits import take_out_strays, void_commits
from master_dataset.table.delta_log import read_commits
from master_dataset.table.history import read_history
from master_dataset.table.ledger import append_to_ledger, missing_from_ledger, read_ledger
from master_dataset.table.proofs import Kind, Proof


class Table:
    """A table with a log, a ledger and files that are just long enough to have a size."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "_delta_log").mkdir(parents=True)
        self.log_file(0).write_text('{"commitInfo":{"operation":"CREATE TABLE"}}\n')

    def log_file(self, version: int) -> Path:
        return self.path / "_delta_log" / f"{version:020}.json"

    def commit(
        self,
        version: int,
        proof: Proof,
        add: Iterable[str] = (),
        remove: Iterable[str] = (),
        *,
        ledger: bool = True,
        at_ms: int = 0,
    ) -> None:
        """Every file holds an equal share of the proof's rows."""
        names = list(add)
        info = {"timestamp": at_ms, "userMetadata": proof.to_json()}
        actions: list[dict[str, object]] = [{"commitInfo": info}]
        for name in names:
            (self.path / name).write_bytes(b"PAR1")
            stats = json.dumps({"numRecords": proof.rows // len(names)})
            actions.append({"add": {"path": name, "size": 4, "stats": stats}})
        actions += [{"remove": {"path": name}} for name in remove]
        self.log_file(version).write_text("".join(json.dumps(action) + "\n" for action in actions))
        if ledger:
            append_to_ledger(self.path, [(version, proof)])

    def checkpoint(self, version: int) -> Path:
        """Delta's checkpoint of a version, with the members that we read."""
        history = read_history(self.path)
        commits = [commit for commit in history.commits if commit.version <= version]
        files = replace(history, commits=commits).files.live.values()
        adds = [{"path": file.path, "size": file.size} for file in files]
        path = self.path / "_delta_log" / f"{version:020}.checkpoint.parquet"
        kind = pa.struct([("path", pa.string()), ("size", pa.int64())])
        pq.write_table(pa.table({"add": pa.array([None, *adds], kind)}), path)
        (path.parent / "_last_checkpoint").write_text(json.dumps({"version": version, "size": len(adds)}))
        return path

    def troubles(self) -> list[Trouble]:
        return [finding.trouble for finding in quick_check(self.path)]

    def void(self) -> list[int]:
        """The first half of a repair: all that needs neither Spark nor Kafka."""
        findings = quick_check(self.path)
        take_out_strays(self.path, findings)
        voided = void_commits(self.path, findings)
        append_to_ledger(self.path, missing_from_ledger(read_commits(self.path), read_ledger(self.path)))
        return voided

    def to_restore(self) -> list[int]:
        return commits_to_restore(read_commits(self.path), read_ledger(self.path), quick_check(self.path))

    def to_undo(self) -> set[int]:
        return compactions_to_undo(read_commits(self.path), read_ledger(self.path), quick_check(self.path))


def append(start: int, end: int, **more: object) -> Proof:
    return Proof(Kind.APPEND, "t", "id", {0: start}, {0: end}, rows=end - start, **more)  # type: ignore[arg-type]


def repaired(start: int, end: int, *replaces: int, **more: object) -> Proof:
    fields = {"rows": end - start, **more}
    return Proof(Kind.REPAIR, "t", "id", {0: start}, {0: end}, replaces=replaces, **fields)  # type: ignore[arg-type]
