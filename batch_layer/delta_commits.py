"""Write the log of a view's Delta table as plain files: a first version, and commits that bring it to a run.

Everything that a commit says is known without Spark, whose transaction takes seconds where this takes milliseconds. The
name of a commit is given out once, as Delta requires of all writers. Nobody else writes these tables.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import structlog

from batch_layer.delta_log import RUN_TAG, TableLog, log_folder, read_log
from hand_off.errors import BatchError
from hand_off.manifests import DataFile
from infra.disk import make_folder, sync_folder
from infra.store import PosixStore
from infra.version import VERSION

DAY = "day"
PROPERTIES = {
    "delta.checkpointInterval": "20",
    "delta.dataSkippingNumIndexedCols": "8",
    # The log is bounded by these, not by the age of the table. Commits stay for two weeks: another engine that follows
    # the table, and was away for some days, goes on where it was. Old checkpoints serve nobody. Data files are deleted
    # by `prune`, so the records of removed files need not stay longer than the commits.
    "delta.enableExpiredLogCleanup": "true",
    "delta.logRetentionDuration": "interval 14 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
    "delta.checkpointRetentionDuration": "interval 2 days",
}
"""Of every table; one that an older version made gets them with its next run."""
PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
Action = Mapping[str, Any]
Schema = Mapping[str, Any]
"""A struct type of Spark's as JSON, which is what Delta has too."""

log = structlog.get_logger()


def make_log(table: Path, schema: Schema, damage: str) -> None:
    """Make the log of a table that has none that can be read. The data files stay: manifests name them.

    All of it can be made again: the log says nothing that a manifest does not.
    """
    # Step 1. A log with version 0, in a folder of its own.
    made = table.with_name(f"{table.name}.making")
    shutil.rmtree(made, ignore_errors=True)
    make_folder(table)
    make_folder(log_folder(made))
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(_with_day(schema), separators=(",", ":")),
        "partitionColumns": [DAY],
        "configuration": PROPERTIES,
        "createdTime": _now_ms(),
    }
    _commit(made, 0, [_info("CREATE TABLE", 0), {"metaData": metadata}, {"protocol": PROTOCOL}])
    # Step 2. Into its place. A crash before leaves a folder that the next call removes; one within, a table without a
    # log, for which the next call makes another. `prune` deletes the damaged log after a day.
    if log_folder(table).is_dir():
        log.warning("table_log_replaced", table=table.name, reason=damage)
        damaged = log_folder(table).with_suffix(".damaged")
        shutil.rmtree(damaged, ignore_errors=True)
        log_folder(table).rename(damaged)
    log_folder(made).rename(log_folder(table))
    shutil.rmtree(made, ignore_errors=True)
    for folder in (table, table.parent):
        sync_folder(folder)


def _with_day(schema: Schema) -> Schema:
    """The columns of a data file, and the day that is in the name of its folder. Each may be null."""
    columns = [{**column, "nullable": True} for column in schema["fields"] if column["name"] != DAY]
    return {"type": "struct", "fields": [*columns, {"name": DAY, "type": "date", "nullable": True, "metadata": {}}]}


def commit_files(table: Path, want: Iterable[DataFile], run: int) -> TableLog | None:
    """Commit what a table lacks to hold exactly these files; None where it lacks nothing. Returns the log before."""
    before = read_log(table)
    wanted = {file.path: file for file in want}
    actions: list[Action] = []
    if not before.metadata.get("configuration", {}).items() >= PROPERTIES.items():
        configuration = {**before.metadata.get("configuration", {}), **PROPERTIES}
        actions.append({"metaData": {**before.metadata, "configuration": configuration}})
    actions += [json.loads(file.action) for path, file in wanted.items() if path not in before.files]
    actions += [_removal(known) for path, known in before.files.items() if path not in wanted]
    if not actions:
        return None
    version = before.version + 1
    _commit(table, version, [_info("WRITE", version, {RUN_TAG: str(run)}), *actions])
    return before


def _removal(known: Action) -> Action:
    return {
        "remove": {
            "path": known["path"],
            "deletionTimestamp": _now_ms(),
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": known["partitionValues"],
            "size": known["size"],
        }
    }


def _info(operation: str, version: int, tags: Mapping[str, str] | None = None) -> Action:
    info = {
        "timestamp": _now_ms(),
        "operation": operation,
        "operationParameters": {},
        **({"readVersion": version - 1} if version else {}),
        "isolationLevel": "Serializable",
        "isBlindAppend": False,
        "engineInfo": f"Tidemark/{VERSION}",
        "txnId": str(uuid.uuid4()),
        **({"tags": tags} if tags else {}),
    }
    return {"commitInfo": info}


def _commit(table: Path, version: int, actions: Iterable[Action]) -> None:
    """Write a commit, durably. BatchError where somebody else wrote one of this version."""
    lines = "".join(f"{json.dumps(action, separators=(',', ':'))}\n" for action in actions)
    if not PosixStore(log_folder(table)).put_if_absent(f"{version:020}.json", lines.encode()):
        raise BatchError(
            f"The Delta table {str(table)!r} has a version {version} that Tidemark did not write. Other programs may "
            "read the tables of batch views, but not write them. The next run tries again."
        )


def _now_ms() -> int:
    return int(time.time() * 1000)
