"""The master table of a source: append only, one writer, every commit with its proof.

A commit is made in steps that plain `df.write` would hide, because the proof (count and hash of what was written) must
be in the same transaction as the rows, and the rows must be on the disk before the commit says that they are.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from infra.disk import sync_file, sync_files, sync_folder
from infra.failpoints import reach
from infra.lease import LeaseHeld, PosixLeases, parse_holder
from infra.locks import hold, holder_of_lock
from master_dataset.errors import MasterDatasetError
from master_dataset.table.delta_log import commit_file, remember_newest
from master_dataset.table.fields import RULES, check_fields
from master_dataset.table.ledger import append_to_ledger
from master_dataset.table.paths import own_folder
from master_dataset.table.proofs import Kind, Proof
from views.field_types import FieldType
from views.reading import rules_of
from views.source import Source

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

APP_ID = "tidemark-master"
LEASE_TTL_S = 60.0
PROPERTIES = {
    # The log is the proof: Delta shortens nothing. `sealing` does, once the commits are in segments.
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 36500 days",
    # Each checkpoint lists the files that left the table within this time. We remove those files ourselves.
    "delta.deletedFileRetentionDuration": "interval 7 days",
    "delta.appendOnly": "false",  # a repair must be able to remove a damaged file; nothing else removes records
    "delta.checkpointInterval": "50",
    # Statistics of partition, offset, timestamp and event_time: the columns that reads skip by. Those of all 32 columns
    # cost a quarter of the archiver's rate.
    "delta.dataSkippingNumIndexedCols": "4",
}
KAFKA_COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")
"""The record as Kafka delivered it."""
PARSED_COLUMNS = ("event_id", "event_time", "invalid", "event")
"""What was parsed from it: hashed separately, because another declaration may parse the same record differently."""


class TableBusy(MasterDatasetError):
    """Another process writes this table."""

    exit_code = 75
    is_temporary = True


def columns_ddl(source: Source) -> str:
    """The table's columns, as Spark DDL. The first ones carry the statistics that reads by offset or time skip by."""
    event = FieldType("struct", fields=source.schema).ddl()
    return f"{RECORD_DDL}, event {event}"


RECORD_DDL = (
    "partition int, offset bigint, timestamp timestamp, event_time timestamp, event_id string, invalid string, "
    "topic string, timestampType int, key binary, headers array<struct<key:string,value:binary>>, value binary"
)
"""All columns but the event itself, as Spark DDL: those of every source."""


def content_hash(*columns: str) -> Column:
    """The hash of a set of rows, the same for every order; the hash of a union is the xor of the parts' hashes."""
    return f.coalesce(f.bit_xor(f.xxhash64(*columns)), f.lit(0)).cast("bigint")


def measures() -> tuple[Column, ...]:
    """The aggregates of rows that are compared when they are written and when they are checked."""
    return (
        f.count(f.lit(1)).alias("rows"),
        content_hash(*KAFKA_COLUMNS).alias("hash"),
        content_hash(*PARSED_COLUMNS).alias("parsed_hash"),
        f.count("invalid").alias("invalid"),
    )


def raw_bytes() -> Column:
    """How many bytes the keys, values and headers of rows are, as Kafka gave them."""
    headers = f.aggregate("headers", f.lit(0), lambda sum_, header: sum_ + _bytes(header.key) + _bytes(header.value))
    total = _bytes(f.col("key")) + _bytes(f.col("value")) + f.coalesce(headers, f.lit(0))
    return f.coalesce(f.sum(total), f.lit(0)).alias("raw_bytes")


def _bytes(column: Column) -> Column:
    return f.coalesce(f.octet_length(column), f.lit(0))


def create_table(spark: SparkSession, path: Path, source: Source) -> None:
    """Create the table if there is none; refuse a table with other columns than declared."""
    from delta.tables import DeltaTable
    from pyspark.sql.types import StructType

    declared = cast(StructType, StructType.fromDDL(columns_ddl(source)))
    first = path / "_delta_log" / f"{0:020}.json"
    if not first.is_file():
        if first.parent.is_dir() and not any(first.parent.iterdir()):
            first.parent.rmdir()  # left by a crash; Delta would take the empty folder for a table it cannot read
        builder = DeltaTable.createIfNotExists(spark).location(str(path)).addColumns(declared)
        rules = rules_of(source.schema)
        for name, value in {**PROPERTIES, **({RULES: json.dumps(rules)} if rules else {})}.items():
            builder = builder.property(name, value)
        builder.execute()
        sync_file(first)
        for folder in (first.parent, path, path.parent):
            sync_folder(folder)
        return
    check_fields(path, source)
    found = spark.read.format("delta").load(str(path)).schema
    if found.simpleString() != declared.simpleString():
        raise MasterDatasetError(
            f"The table {str(path)!r} has the columns {found.simpleString()}; they should be those of source "
            f"{source.name!r}: {declared.simpleString()}. Restore the table from a backup."
        )
    _set_properties(spark, path)


def _set_properties(spark: SparkSession, path: Path) -> None:
    """Give a table of an older version the properties that it would get today, in a commit without records."""
    found = _snapshot(spark, path).metadata().configuration()
    known = {name: found.get(name).get() for name in PROPERTIES if found.contains(name)}
    changed = [f"'{name}' = '{value}'" for name, value in PROPERTIES.items() if known.get(name) != value]
    if changed:
        with commit_lock(path):
            quoted = str(path).replace("`", "``")
            spark.sql(f"ALTER TABLE delta.`{quoted}` SET TBLPROPERTIES ({', '.join(changed)})")
            sync_file(commit_file(path, _snapshot(spark, path).version()))
            sync_folder(path / "_delta_log")


def _snapshot(spark: SparkSession, path: Path) -> JavaObject:
    """The newest version of the table that Delta has seen in this process."""
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(path)).unsafeVolatileSnapshot()


class Committed(NamedTuple):
    """A commit that was made, with its proof as it is in the table."""

    version: int
    proof: Proof


def append(
    spark: SparkSession,
    path: Path,
    rows: DataFrame | None,
    proof: Proof,
    *,
    files: int | None = None,
    instead_of: Collection[str] = (),
    bring_back: Collection[str] = (),
    check: Callable[[list[str]], None] = lambda _names: None,
) -> Committed:
    """Commit `rows` with `proof`, whose counts and hash are filled in from what was written.

    `rows` has the table's columns, or is None where there is nothing to add; `files` is into how many files they go,
    if that matters. In the same commit the data files `instead_of` leave the table, and those that the lines
    `bring_back` (of older commits) describe come back. `check` gets the names of the new files when they are on the
    disk; if it raises, nothing is committed. The caller holds `commit_lock`.
    """
    jvm: Any = spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(path))
    transaction = log.startTransaction(jvm.scala.Option.empty(), jvm.scala.Option.empty())
    sequence = _next_sequence(transaction)
    # Step 1. Write the data files, counting and hashing on the way. A crash leaves files that no commit names.
    written, measured = _empty_list(jvm), {}
    began_ns = time.time_ns()
    if rows is not None:
        ordered = rows.select(*transaction.snapshot().schema().fieldNames())
        ordered = ordered if files is None else ordered.coalesce(files)
        seen = Observation()
        written = transaction.writeFiles(ordered.observe(seen, *measures(), raw_bytes())._jdf)
        measured = seen.get
        if not measured["rows"]:
            _remove_empty_files(path, began_ns)
    # Step 2. Data on the disk before the commit that promises it. Delta itself never calls fsync.
    reach("archiver.files_written")
    names = [written.apply(i).path() for i in range(written.size())]
    sync_files([path / name for name in names])
    sync_folder(path)
    check(names)
    # Step 3. Rows, offsets and proof become visible together. The sequence number lets a second writer fail here.
    done = replace(proof, **measured)
    if proof.kind == Kind.RETAIN:
        reach("retain.before_commit")
    is_new = proof.kind not in (Kind.COMPACT, Kind.UNCOMPACT)  # else a stream that reads the table skips this commit
    actions = _empty_list(jvm).appended(_set_transaction(jvm, sequence))
    for i in range(written.size()):
        actions = actions.appended(_with_data_change(written.apply(i), is_new))
    parse = getattr(getattr(jvm.org.apache.spark.sql.delta.actions, "Action$"), "MODULE$").fromJson
    for line in bring_back:
        actions = actions.appended(_with_data_change(parse(line), is_new))
    for old in _files_named(transaction, instead_of):
        actions = actions.appended(old.removeWithTimestamp(round(time.time() * 1000), is_new))
    version = int(transaction.commit(actions, _operation(jvm, sequence, done)))
    # Step 4. Sync the commit, then add its proof to the ledger. After a crash in between, the next start adds it.
    reach("archiver.before_ledger")
    if not is_new:
        reach("compact.before_ledger")
    if proof.kind == Kind.RETAIN:
        reach("retain.before_ledger")
    sync_file(commit_file(path, version))
    sync_folder(path / "_delta_log")
    append_to_ledger(path, [(version, done)])
    remember_newest(path, version)
    return Committed(version, done)


def _next_sequence(transaction: JavaObject) -> int:
    """The sequence number of this commit. If another writer commits first, this commit fails.

    `txnVersion` computes the whole snapshot, with a Spark job, to find the number of the commit before. The checksum
    file that Delta writes with each commit has it too; what is left of `txnVersion` is the entry in `readTxn`.
    """
    checksum = transaction.snapshot().checksumOpt()
    known = checksum.get().setTransactions() if checksum.isDefined() else checksum
    numbers = [known.get().apply(i) for i in range(known.get().size())] if known.isDefined() else []
    for number in numbers:
        if number.appId() == APP_ID:
            transaction.readTxn().addOne(APP_ID)
            return int(number.version()) + 1
    return int(transaction.txnVersion(APP_ID)) + 1


def _remove_empty_files(path: Path, since_ns: int) -> None:
    """Remove files without rows, which Spark writes where offsets have no record, as after an aborted transaction.

    Delta leaves them out of the commit, and so they would be stray for ever.
    """
    for file in path.glob("*.parquet"):
        if file.stat().st_mtime_ns >= since_ns and pq.read_metadata(file).num_rows == 0:
            remove_files(path, [file.name])


def remove_files(path: Path, names: Iterable[str]) -> None:
    """Remove data files that no commit names, with Hadoop's checksums."""
    for name in names:
        file = path / name
        file.unlink(missing_ok=True)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def _files_named(transaction: JavaObject, names: Collection[str]) -> list[JavaObject]:
    if not names:
        return []
    files = {unquote(file.path()): file for file in transaction.snapshot().allFiles().collect()}
    unknown = sorted(set(names) - files.keys())
    if unknown:
        raise MasterDatasetError(
            f"{unknown} should leave the table, but Delta does not know them: its log and ours are read differently. "
            "Nothing was committed; `tidemark master fsck --deep` says what is damaged."
        )
    return [files[name] for name in names]


def _with_data_change(file: JavaObject, value: bool) -> JavaObject:
    """The file with another `dataChange`: a Scala case class, copied field by field."""
    fields = range(file.productArity())
    return file.copy(*(value if file.productElementName(i) == "dataChange" else file.productElement(i) for i in fields))


def _empty_list(jvm: Any) -> JavaObject:
    return getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")


def _set_transaction(jvm: Any, sequence: int) -> JavaObject:
    return jvm.org.apache.spark.sql.delta.actions.SetTransaction(APP_ID, sequence, jvm.scala.Option.empty())


def _operation(jvm: Any, sequence: int, proof: Proof) -> JavaObject:
    mode = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
    update = getattr(jvm.org.apache.spark.sql.delta, "DeltaOperations$StreamingUpdate")
    return update(mode, APP_ID, sequence, jvm.scala.Option.apply(proof.to_json()))


# ---- locks -----------------------------------------------------------


@contextmanager
def archiver_lock(path: Path, doing: str = "archiver") -> Iterator[None]:
    """Held by the process that archives into this table, for as long as it runs: the archiver, or a repair."""
    leases = PosixLeases(own_folder(path))
    try:
        lease = leases.acquire("archiver", LEASE_TTL_S, doing=doing)
    except LeaseHeld as held:
        raise TableBusy(f"The table {str(path)!r} is written by {held.holder or 'process unknown'}.") from None
    try:
        yield
    finally:
        leases.release(lease)


@contextmanager
def commit_lock(path: Path) -> Iterator[None]:
    """Held around each commit, so that appending and compacting take turns. Waits for its turn."""
    folder = own_folder(path)
    folder.mkdir(parents=True, exist_ok=True)
    with hold(folder / "commit.lock", holder=str(os.getpid())):
        yield


def lock_holder(path: Path) -> int | None:
    """The process of this host that archives into this table now, if there is one."""
    holder = parse_holder(holder_of_lock(own_folder(path) / "archiver.lock") or "")
    return None if holder is None else holder.pid_here
