"""Give an aged home the formats of Tidemark 0.1.0, as if that version had written it until tonight.

Changed are: `home.json`; the publish log, one file with a line for each run; manifests, without the members that came
later; the master table's commits and ledger, with nothing sealed; the properties of the views' Delta tables; and the
fields of Redis that only newer writers set. What 0.1.0 never removed, such as old checkpoints, does not come back.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from batch_layer.delta_commits import PROPERTIES
from batch_layer.delta_log import exposed_run, read_log
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.checksums import seal, unseal
from hand_off.entries import entry_to_json
from hand_off.manifests import Manifest, ViewData, read_manifest
from hand_off.old_publish_log import FORMAT
from hand_off.speed_views import SpeedViews
from infra.home import Home, read_json, write_json
from master_dataset.table.delta_log import commit_file, remembered_file
from master_dataset.table.ledger import append_to_ledger, ledger_file, read_ledger
from master_dataset.table.paths import own_folder
from master_dataset.table.segments import list_segments, sealed_commits
from torture.age.errors import WrongAnswer

OLD_VERSION = {"layout": 1, "version": "0.1.0"}
OLD_PROPERTIES = {"delta.checkpointInterval": "20", "delta.dataSkippingNumIndexedCols": "8"}


def write_old_formats(
    spark: SparkSession, home: Home, folder: BatchFolder, table: Path, speed_views: SpeedViews
) -> int:
    """Rewrite the home. Nobody may use it meanwhile. Returns how many commits of the archiver are unsealed now."""
    write_json(home.root / "home.json", OLD_VERSION)
    write_old_publish_log(folder)
    write_old_manifests(folder)
    _view_tables(spark, folder)
    _redis(speed_views)
    return unseal_commits(table)


def check_upgraded(home: Home, folder: BatchFolder, table: Path, speed_views: SpeedViews) -> None:
    """Raise WrongAnswer unless every format is today's again: the new version took over by itself."""
    behind = {
        "home.json": read_json(home.root / "home.json") == OLD_VERSION,
        "the publish log": folder.publish_log.exists(),
        "the newest manifest": not all(data.max_key_bytes for data in _newest(folder).views),
        "the ledger": not list_segments(table),
        "Redis": speed_views.reader.snapshot().meta is not None
        and not speed_views.client.hexists(speed_views.layout.meta, "short_keys"),
        "the properties of a view's table": not all(
            _properties(folder, data) == PROPERTIES for data in _newest(folder).views
        ),
    }
    if left := [name for name, is_behind in behind.items() if is_behind]:
        raise WrongAnswer(f"After the upgrade these still have the format of 0.1.0: {', '.join(left)}.")


def write_old_publish_log(folder: BatchFolder) -> None:
    """Line n is entry n."""
    lines = [seal({"format": FORMAT, **entry_to_json(entry)}) + "\n" for entry in publish_log.read(folder)]
    shutil.rmtree(folder.root / "publish")
    folder.publish_log.with_name("publish.log.migrated").unlink(missing_ok=True)
    folder.publish_log.write_text("".join(lines), encoding="utf-8")


def write_old_manifests(folder: BatchFolder) -> None:
    """Manifests without the members that came after 0.1.0."""
    for path in folder.runs.glob("*.json"):
        value = unseal(path.read_bytes())
        if value is None:
            continue
        for member in ("unpin", "timeline"):
            value.pop(member, None)
        for view in value["views"]:
            for member in ("max_key_bytes", "since"):
                view.pop(member, None)
        path.write_text(seal({**value, "app": "0.1.0"}, indent=1), encoding="utf-8")


def _view_tables(spark: SparkSession, folder: BatchFolder) -> None:
    """A commit that leaves only the properties of 0.1.0, with the tag of the run that the table shows."""
    jvm: Any = spark._jvm
    option, delta = jvm.scala.Option, jvm.org.apache.spark.sql.delta
    for data in _newest(folder).views:
        table = folder.table(data.name, data.hash)
        run = exposed_run(table)
        log = delta.DeltaLog.forTable(spark._jsparkSession, str(table))
        transaction = log.startTransaction(option.empty(), option.empty())
        known = json.loads(transaction.metadata().json())
        known["metaData"]["configuration"] = OLD_PROPERTIES
        parse = getattr(getattr(delta.actions, "Action$"), "MODULE$").fromJson
        transaction.updateMetadata(parse(json.dumps(known)), False)
        tags = getattr(getattr(jvm.scala.collection.immutable, "Map$"), "MODULE$").empty()
        operation = getattr(getattr(delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
        nothing = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")
        transaction.commit(nothing, operation, tags.updated("tidemark.run", str(run)))


def _redis(speed_views: SpeedViews) -> None:
    meta = speed_views.layout.meta
    known: Any = speed_views.client.hkeys(meta)
    fields = [name for name in known if name == b"short_keys" or name.startswith(b"bytes:")]
    if fields:
        speed_views.client.hdel(meta, *fields)


def unseal_commits(table: Path) -> int:
    """Every sealed commit is a file of the log again, and every proof a line of the ledger's file."""
    proofs, count = read_ledger(table), 0
    for commit in sealed_commits(table):
        path = commit_file(table, commit.version)
        if not path.exists():
            path.write_text(commit.text, encoding="utf-8")
            count += 1
    ledger_file(table).unlink(missing_ok=True)
    append_to_ledger(table, sorted(proofs.items()))
    remembered_file(table).unlink(missing_ok=True)
    for name in ("segments", "summaries"):
        shutil.rmtree(own_folder(table) / name, ignore_errors=True)
    return count


def _newest(folder: BatchFolder) -> Manifest:
    return read_manifest(folder, publish_log.last(folder).run)


def _properties(folder: BatchFolder, data: ViewData) -> dict[str, str]:
    """Those of PROPERTIES that a table has at its newest version."""
    found: dict[str, str] = read_log(folder.table(data.name, data.hash)).metadata["configuration"]
    return {key: value for key, value in found.items() if PROPERTIES.get(key) == value}
