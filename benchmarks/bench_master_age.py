"""An old master table: what a position, a status, a check and a start cost after 100,000 commits.

    python benchmarks/bench_master_age.py [--commits 100000] [--older FOLDER]

The table is made up without Spark: each commit has one row in one file, and a log, a ledger and Delta's checkpoints
like the archiver's. Each question is asked by a process of its own. Beside the figures of the table as 0.1.0 left it
are those after its commits were sealed, after its files were merged too, and those of a table of 1,000 commits as the
floor. With `--older`, a checkout of 0.1.0 asks what was not sealed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import report

from master_dataset.table.compaction import remove_replaced
from master_dataset.table.delta_log import commit_file
from master_dataset.table.history import read_history
from master_dataset.table.ledger import append_to_ledger
from master_dataset.table.proofs import Kind, Proof
from master_dataset.table.sealing import seal, trim_log

STEP = 50
"""Commits between two checkpoints."""
OVER = 30
"""Commits after the newest checkpoint."""
FLOOR = 1_000
SCHEMA = '{"type":"struct","fields":[{"name":"partition","type":"integer","nullable":true,"metadata":{}}]}'

QUESTIONS = {
    "position (a run that waits, twice a second)": """
from master_dataset.table import coverage
assert coverage.of(table).rows == ROWS
""",
    "master status": """
from master_dataset.table import coverage
try:
    from master_dataset.table.history import read_history
    history = read_history(table)
    held, files = coverage.of_history(history), history.files.live
except ImportError:
    from master_dataset.table.delta_log import live_files, read_commits
    commits = read_commits(table)
    held, files = coverage.of(table, commits), live_files(commits)
assert held.rows == ROWS and files
""",
    "quick check (each run)": """
from master_dataset.table.checks.fsck import quick_check
assert quick_check(table) == []
""",
    "archiver start, its part of the table": """
from master_dataset.table.append import commit_lock
from master_dataset.table.checks.fsck import refuse_damage
from master_dataset.table import coverage
from master_dataset.table.delta_log import remember
from master_dataset.table.ledger import complete_ledger
refuse_damage("web", table)
try:
    from master_dataset.table.history import read_history
    with commit_lock(table):
        newest = read_history(table).in_log
        complete_ledger(table, newest)
        remember(table, newest)
        held = coverage.of_history(read_history(table))
except ImportError:
    commits, ledger = complete_ledger(table)
    remember(table, commits)
    held = coverage.follow(coverage.effective_proofs(commits, ledger))
assert held.rows == ROWS
""",
}
ASK = """
import sys, time
from pathlib import Path
table, ROWS = Path(sys.argv[1]), int(sys.argv[2])
import master_dataset.table.checks.fsck, master_dataset.table.append
def peak_mb():
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
began = time.perf_counter()
{question}
print(time.perf_counter() - began, peak_mb())
"""


@dataclass
class Aged:
    """A made-up table."""

    path: Path
    rows: int
    checkpoint_bytes: int
    is_quick: bool = True


def main() -> None:
    """Measure, and write the result and the page."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--commits", type=int, default=100_000)
    arguments.add_argument("--older", type=Path, default=None)
    given = arguments.parse_args()
    columns: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        floor = make(Path(folder) / "floor" / "web", FLOOR)
        columns[f"{FLOOR:,} commits"] = asked(floor)
        aged = make(Path(folder) / "aged" / "web", given.commits)
        aged.is_quick = False
        columns["0.1.0" if given.older else "not sealed"] = asked(aged, given.older)
        kept_for_ever = aged.checkpoint_bytes * (given.commits // STEP) // 2
        began = time.perf_counter()
        seal(aged.path)
        sealed_s = time.perf_counter() - began
        trim_log(aged.path, grace_s=0)
        aged.is_quick = True
        columns["sealed"] = asked(aged)
        merge(aged)
        columns["sealed and merged"] = asked(aged)
    write(given.commits, columns, sealed_s, kept_for_ever)


def make(table: Path, commits: int) -> Aged:
    """A table of so many commits, as 0.1.0 left it, but with the newest two of its checkpoints alone."""
    last = commits // STEP * STEP + OVER
    (table / "_delta_log").mkdir(parents=True)
    commit_file(table, 0).write_text(
        json.dumps({"commitInfo": {"timestamp": 1, "operation": "CREATE TABLE"}})
        + "\n"
        + json.dumps({"metaData": {"id": str(uuid.uuid4()), "schemaString": SCHEMA, "partitionColumns": []}})
        + "\n"
    )
    proofs, files, size = [], [], 0
    for version in range(1, last + 1):
        proof = Proof(
            Kind.APPEND, "web", "u6Lh3yKzRWy", {0: version - 1}, {0: version}, 1, version, -version, raw_bytes=40
        )
        name = f"part-00000-{uuid.UUID(int=version)}-c000.snappy.parquet"
        write_commit(table, version, proof, [add(table, name, 1)], [])
        files.append({"path": name, "size": 4, "stats": '{"numRecords":1}'})
        proofs.append((version, proof))
        if version % STEP == 0 and last - version < 2 * STEP:
            size = write_checkpoint(table, version, files)
    append_to_ledger(table, proofs)
    return Aged(table, last, size)


def write_commit(
    table: Path, version: int, proof: Proof, adds: list[dict[str, Any]], removes: list[dict[str, Any]]
) -> None:
    """A commit as Delta writes it, and its summary of the version."""
    info = {
        "timestamp": 1_760_000_000_000 + version,
        "operation": "STREAMING UPDATE",
        "operationParameters": {"outputMode": "Append", "queryId": "tidemark-master", "epochId": str(version)},
        "readVersion": version - 1,
        "isolationLevel": "Serializable",
        "isBlindAppend": True,
        "operationMetrics": {"numRemovedFiles": "0", "numOutputRows": "1", "numAddedFiles": "1"},
        "userMetadata": proof.to_json(),
        "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0",
        "txnId": str(uuid.UUID(int=version)),
    }
    txn = {"appId": "tidemark-master", "version": version}
    actions = [{"commitInfo": info}, {"txn": txn}, *({"add": each} for each in adds), *({"remove": e} for e in removes)]
    commit_file(table, version).write_text("".join(json.dumps(action) + "\n" for action in actions))
    summary = {"tableSizeBytes": 4 * version, "numFiles": version, "numMetadata": 1, "setTransactions": [txn]}
    commit_file(table, version).with_suffix(".crc").write_text(json.dumps(summary))


def add(table: Path, name: str, rows: int) -> dict[str, Any]:
    """A data file, and what a commit says of it."""
    (table / name).write_bytes(b"PAR1")
    stats = {"numRecords": rows, "minValues": {"partition": 0, "offset": 0}, "maxValues": {"partition": 0, "offset": 9}}
    return {
        "path": name,
        "partitionValues": {},
        "size": 4,
        "modificationTime": 1_760_000_000_000,
        "dataChange": True,
        "stats": json.dumps(stats),
    }


def write_checkpoint(table: Path, version: int, files: list[dict[str, Any]]) -> int:
    """Delta's checkpoint of a version. Returns its bytes."""
    path = commit_file(table, version).with_name(f"{version:020}.checkpoint.parquet")
    pq.write_table(pa.table({"add": pa.array([None, *files])}), path)
    (path.parent / "_last_checkpoint").write_text(json.dumps({"version": version, "size": len(files)}))
    return path.stat().st_size


def merge(aged: Aged) -> None:
    """Merge all files into one, and grow on until that is sealed, as a year of the archiver does."""
    table, before = aged.path, read_history(aged.path)
    version, live = before.newest + 1, before.files.live
    name = f"part-00000-{uuid.UUID(int=version)}-c000.snappy.parquet"
    removes = [{"path": path, "deletionTimestamp": 1_760_000_000_000, "dataChange": False} for path in live]
    write_commit(table, version, Proof(Kind.COMPACT, rows=aged.rows), [add(table, name, aged.rows)], removes)
    append_to_ledger(table, [(version, Proof(Kind.COMPACT, rows=aged.rows))])
    for checkpoint in (version, version + STEP):
        while read_history(table).newest < checkpoint:
            at = read_history(table).newest + 1
            proof = Proof(
                Kind.APPEND, "web", "u6Lh3yKzRWy", {0: aged.rows}, {0: aged.rows + 1}, 1, at, -at, raw_bytes=40
            )
            write_commit(table, at, proof, [add(table, f"{name}.{at}", 1)], [])
            append_to_ledger(table, [(at, proof)])
            aged.rows += 1
        files = [{"path": each.path, "size": 4, "stats": ""} for each in read_history(table).files.live.values()]
        write_checkpoint(table, checkpoint, files)
    remove_replaced(table, keep_s=0)
    seal(table, min_commits=1)
    trim_log(table, grace_s=0)


def asked(aged: Aged, checkout: Path | None = None) -> dict[str, Any]:
    """Seconds and MB of each question, and what is on the disk."""
    found: dict[str, Any] = {}
    environment = {**os.environ, "PYTHONPATH": str(checkout or Path(__file__).resolve().parent.parent)}
    for name, question in QUESTIONS.items():
        times, memory = [], []
        for _ in range(3 if aged.is_quick else 1):
            program = [sys.executable, "-c", ASK.format(question=question), str(aged.path), str(aged.rows)]
            said = subprocess.run(program, env=environment, check=True, capture_output=True, text=True).stdout
            seconds, megabytes = map(float, said.split()[-2:])
            times.append(seconds)
            memory.append(megabytes)
        found[name] = {"seconds": report.median(times), "mb": report.median(memory)}
        sys.stdout.write(f"{name}: {_cost(found[name])}\n")
    own = aged.path.with_name(f"{aged.path.name}.proofs")
    found["files of the log"], found["bytes of the log"] = on_disk(aged.path / "_delta_log")
    found["files beside the table"], found["bytes beside the table"] = on_disk(own)
    return found


def on_disk(folder: Path) -> tuple[int, int]:
    """How many files, and bytes of the disk they take."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return len(files), sum(found.st_blocks * 512 for found in files)


def write(commits: int, columns: dict[str, dict[str, Any]], sealed_s: float, kept_for_ever: int) -> None:
    """The result and its text."""
    rows = [("", *columns)]
    for name in QUESTIONS:
        rows.append((name, *(_cost(column[name]) for column in columns.values())))
    for where in ("the log", "beside the table"):
        key = f"of {where}" if where == "the log" else where
        cells = [f"{c[f'files {key}']:,} files, {c[f'bytes {key}'] / 2**20:,.1f} MB" for c in columns.values()]
        rows.append((f"on disk: {where}", *cells))
    text = (
        f"{report.table(*rows)}\n\nA table of {commits:,} commits, a file of one row each; the first column is a table "
        f"of {FLOOR:,} commits, the floor. Seconds, and the peak of the process's memory. 0.1.0 also kept all "
        f"checkpoints of Delta, which are not on this disk: {kept_for_ever / 2**30:,.1f} GB by the size of the newest. "
        f"Sealing all commits of the old table, once, took {sealed_s:.1f} s. Merged means that the files were merged "
        "into one, as the archiver does from 500 files on, and that the old ones were removed."
    )
    report.write("master_age", "An old master table", {"columns": columns, "sealed_s": sealed_s}, text)


def _cost(found: dict[str, Any]) -> str:
    return f"{found['seconds']['median']:.2f} s, {found['mb']['median']:.0f} MB"


if __name__ == "__main__":
    main()
