"""Find the duplicates of events: of all valid events with one id below a cut, the lowest (partition, offset) counts.

Comparing all ids as texts would shuffle the whole dataset. So 64-bit hashes of the ids are compared first, and the
ids themselves only where hashes meet: exact, at a fraction of the cost. The hashes are kept (`ids`), so that a run that
goes on from another need only read them, not all of history. Each run adds a folder; a few of them become one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as f

from batch_layer import duplicates_in_memory
from batch_layer.duplicates_in_memory import across, locations_of, read_events, within, without
from batch_layer.few_events import FewEvents
from batch_layer.parquet_files import count_rows, files_of, rows_of_folders, write_table
from batch_layer.verify_totals import values_of
from hand_off.batch_folder import DIGESTS, DUPLICATES, HASHES
from hand_off.errors import BatchError
from hand_off.foundations import DIGEST_BYTES
from infra.disk import sync_file, sync_folder
from master_dataset.cut import Cut, count_between
from master_dataset.reading.read_spark import records_between
from views.columns import Columns
from views.source import Source

POSITION = ("partition", "offset")
LOCATIONS = "partition int, offset bigint"
BROADCAST_ROWS = 1_000_000
"""Up to so many hashes are sent to every worker whole; more are joined by a shuffle."""
HASHES_LOST = "{} hashes of ids are left of {}"
MAX_FOLDERS = 8
"""More folders of hashes than this are merged into one: without a bound, a year of nights would be 365 to open."""


@dataclass(frozen=True)
class Counted:
    """What was found between two cuts."""

    records: int
    invalid: int
    duplicates: int
    where: DataFrame | None
    """Positions of the duplicates; None: there are none."""
    ids: str | None
    """The folder with the hashes of these events, below that of all ids; None: there was nothing to look at."""
    why_all: str = ""
    """Why going on from the earlier run would be wrong; empty: it would not."""
    few: FewEvents | None = None
    """What views need of the events that count, where they are few and this was asked for."""
    everywhere: pa.Table | None = None
    """The locations of all records, where they are few."""

    @property
    def folders(self) -> tuple[str, ...]:
        """The folder with the hashes, if there is one."""
        return () if self.ids is None else (self.ids,)


def find_duplicates(
    spark: SparkSession,
    table: Path,
    source: Source,
    start: Cut,
    end: Cut,
    ids: Path,
    run: int,
    earlier: tuple[str, ...] = (),
    known: int = 0,
    columns: Columns | None = None,
    removed: tuple[str, ...] = (),
) -> Counted:
    """Look at the events in [start, end); `earlier` names the hashes of all `known` events below `start`.

    With `columns`, a few events are also evaluated for views, by the same job. `removed` names the digests of those
    that counted and are no longer in the table.
    """
    if count_between(start, end) <= duplicates_in_memory.MAX_EVENTS and known <= duplicates_in_memory.MAX_KNOWN:
        return _find_in_memory(spark, table, source, start, end, ids, run, earlier, known, columns, removed)
    name = f"{run:08}"
    records, invalid = write_hashes(records_between(spark, table, source, start, end), ids / name / HASHES)
    if (written := rows_of_folders([ids / name / HASHES])) != records - invalid:
        raise BatchError(f"{written} hashes were written of {records - invalid} events. Check the disk; run again.")
    hashes = spark.read.parquet(str(ids / name / HASHES))
    found = _within(records_between(spark, table, source, start, end), hashes)
    why_all = ""
    if earlier and records > invalid:
        if (count := rows_of_folders(ids / each / HASHES for each in earlier)) != known:
            return Counted(records, invalid, 0, None, name, HASHES_LOST.format(count, known))
        old = spark.read.parquet(*(str(ids / each / HASHES) for each in earlier))
        gone = spark.read.parquet(*(str(ids / each / DIGESTS) for each in removed)) if removed else None
        again = _across(spark, table, source, start, end, old, hashes, gone)
        if again is not None:
            why_all = _why_all(again.where("is_lower").count())
            again = again.select(*POSITION)
            found = again if found is None else found.union(again).distinct()
    if found is not None:
        write(found, ids / name / DUPLICATES)
        found = all_duplicates(spark, ids, (name,))
    duplicates = rows_of_folders([ids / name / DUPLICATES]) if found is not None else 0
    return Counted(records, invalid, duplicates, found, name, why_all)


def _find_in_memory(
    spark: SparkSession,
    table: Path,
    source: Source,
    start: Cut,
    end: Cut,
    ids: Path,
    run: int,
    earlier: tuple[str, ...],
    known: int,
    columns: Columns | None,
    removed: tuple[str, ...],
) -> Counted:
    """The same for events that fit into this process, with one or two Spark jobs instead of a dozen."""
    name = f"{run:08}"
    events = read_events(spark, table, source, start, end, columns)
    valid = events.hashes.num_rows
    write_table(events.hashes, ids / name / HASHES)
    found, why_all = within(events), ""
    if earlier and valid:
        files = files_of(ids / each / HASHES for each in earlier)
        if (count := count_rows(files)) != known:
            return Counted(events.records, events.records - valid, 0, None, name, HASHES_LOST.format(count, known))
        met = across(spark, table, source, start, events, files, files_of(ids / each / DIGESTS for each in removed))
        why_all = _why_all(int(met.lower.sum()))
        found |= met.duplicates
    if duplicates := int(found.sum()):
        write_table(locations_of(events, found), ids / name / DUPLICATES)
    where = all_duplicates(spark, ids, (name,)) if duplicates else None
    few = FewEvents(columns, without(events, found)) if columns is not None else None
    return Counted(events.records, events.records - valid, duplicates, where, name, why_all, few, events.everywhere)


def _why_all(lower: int) -> str:
    if not lower:
        return ""
    return f"{lower} duplicates have a lower position, in another partition, than the events that were counted"


def all_duplicates(spark: SparkSession, ids: Path, names: tuple[str, ...]) -> DataFrame | None:
    """The positions of the duplicates that were found by several runs; None: there are none."""
    paths = [str(ids / name / DUPLICATES) for name in names if (ids / name / DUPLICATES).is_dir()]
    return spark.read.schema(LOCATIONS).parquet(*paths) if paths else None


def merge_ids(spark: SparkSession, ids: Path, names: tuple[str, ...], name: str, hashes: int, duplicates: int) -> str:
    """Write what several runs found into one new folder, which must then hold so many hashes and duplicates.

    Nothing is taken away: the manifests of other runs may name the old folders. They go when those runs are pruned.
    """
    wanted = {HASHES: hashes, DUPLICATES: duplicates}
    old = spark.read.parquet(*(str(ids / each / HASHES) for each in names))
    for part, rows in ((HASHES, old), (DUPLICATES, all_duplicates(spark, ids, names))):
        written = 0
        if rows is not None:
            write(rows, ids / name / part)
            written = rows_of_folders([ids / name / part])
        if written != wanted[part]:
            raise BatchError(
                f"{len(names)} folders in {str(ids)!r} have {written} {part} when merged, instead of {wanted[part]}. "
                "Nothing was published. `tidemark batch run --full` looks for duplicates again."
            )
    return name


def write_digests(events: DataFrame, folder: Path) -> None:
    """Write what is kept of the ids of events that are to be removed: their digests."""
    write(events.select(_digest().alias("digest")), folder)


def merge_digests(spark: SparkSession, ids: Path, names: tuple[str, ...], name: str) -> str:
    """Write the digests of several folders into a new one."""
    write(spark.read.parquet(*(str(ids / each / DIGESTS) for each in names)), ids / name / DIGESTS)
    counts = [rows_of_folders(ids / each / DIGESTS for each in each_of) for each_of in (names, (name,))]
    if counts[0] != counts[1]:
        raise BatchError(f"{counts[0]} digests of ids became {counts[1]} when merged. Check the disk; run again.")
    return name


def _digest() -> Column:
    return f.unhex(f.substring(f.sha2(f.col("event_id").cast("binary"), 256), 1, 2 * DIGEST_BYTES))


def write_hashes(rows: DataFrame, folder: Path) -> tuple[int, int]:
    """Write the hash and the position of each valid event; count all records and the invalid ones on the way."""
    seen = Observation()
    wanted = (f.count(f.lit(1)).alias("records"), f.count("invalid").alias("invalid"))
    hashed = (
        rows.observe(seen, *wanted).where("invalid IS NULL").select(f.xxhash64("event_id").alias("hash"), *POSITION)
    )
    write(hashed, folder)
    found = values_of(seen) or rows.agg(*wanted).collect()[0].asDict()
    return int(found["records"]), int(found["invalid"])


def write(rows: DataFrame, folder: Path) -> None:
    """Write rows as Parquet, on the disk when it returns."""
    rows.write.mode("overwrite").parquet(str(folder))
    for path in folder.glob("*.parquet"):
        sync_file(path)
    for changed in (folder, folder.parent, folder.parent.parent):
        sync_folder(changed)


def _within(rows: DataFrame, hashes: DataFrame) -> DataFrame | None:
    """Duplicates of each other among these events: all but the lowest position of each id."""
    twice = hashes.groupBy("hash").count().where("count > 1").select("hash").persist()
    if twice.isEmpty():
        return None
    suspects = _with_hash(rows, twice)
    first = Window.partitionBy("event_id").orderBy(*POSITION)
    return suspects.withColumn("place", f.row_number().over(first)).where("place > 1").select(*POSITION)


def _with_hash(rows: DataFrame, hashes: DataFrame) -> DataFrame:
    """The valid events whose hash is among `hashes`, with their ids."""
    valid = rows.where("invalid IS NULL").withColumn("hash", f.xxhash64("event_id"))
    return valid.join(_sent(hashes), "hash", "left_semi")


def _sent(hashes: DataFrame) -> DataFrame:
    return f.broadcast(hashes) if hashes.count() <= BROADCAST_ROWS else hashes


def _across(
    spark: SparkSession,
    table: Path,
    source: Source,
    start: Cut,
    end: Cut,
    old: DataFrame,
    new: DataFrame,
    removed: DataFrame | None = None,
) -> DataFrame | None:
    """Duplicates of events that an earlier run counted: their positions, and whether they should have counted instead.

    They should where theirs is the lower position, which needs another partition. States have no inverse. Events that
    counted and were removed since, of which `removed` has the digests, count for ever.
    """
    met = old.join(_sent(new.select("hash")), "hash", "left_semi").persist()
    if met.isEmpty():
        return None
    before = records_between(spark, table, source, {}, start).where("invalid IS NULL")
    known = (
        before.join(met.select(*POSITION), list(POSITION), "left_semi")
        .select("event_id", f.struct(*POSITION).alias("old"))
        .groupBy("event_id")
        .agg(f.min("old").alias("old"))
    )
    after = _with_hash(records_between(spark, table, source, start, end), met.select("hash").distinct())
    pairs = after.select("event_id", *POSITION).join(known, "event_id")
    found = pairs.select(*POSITION, (f.struct(*POSITION) < f.col("old")).alias("is_lower"))
    if removed is None:
        return found
    again = after.withColumn("digest", _digest()).join(removed, "digest", "left_semi").select(*POSITION).persist()
    return found.join(again, list(POSITION), "left_anti").union(again.withColumn("is_lower", f.lit(False)))
