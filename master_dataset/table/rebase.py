"""Go on with a topic that was made again, or that lost its newest records: record new bases for its offsets.

Records that the table holds stay where they are. Kafka's records that it does not hold get logical offsets above all
that anybody has seen. What the old Kafka acknowledged and nobody archived is gone; the commit records those offsets as
lost, together with the topic and its bases, so that neither is there without the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from infra.clients.kafka import spark_kafka_options
from infra.settings import Settings
from master_dataset.cut import Cut, OffsetRange, cut_to_json, join, ranges
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.offset_base import OffsetBase, next_base, to_kafka, to_logical
from master_dataset.kafka.positions import PartitionsDiffer, Positions
from master_dataset.table.coverage import Coverage
from master_dataset.table.proofs import Kind, Proof
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAME = ("timestamp", "timestampType", "key", "value", "headers")
"""The columns in which a record of Kafka and a row of the table are compared; their location is the same."""


class NothingToRebase(MasterDatasetError):
    """The topic is the one that the table's records are from, and it lost nothing."""


class MixedRecords(MasterDatasetError):
    """A topic that is neither an older state of the one that was archived nor a new one."""


class LossNotAccepted(MasterDatasetError):
    """A rebase would give up offsets, and nobody accepted that."""

    def __init__(self, source: str, lost: list[OffsetRange]) -> None:
        super().__init__(
            f"Source {source!r}: {sum(each.size for each in lost)} offsets of the old Kafka are in no commit of the "
            f"master dataset: {'; '.join(map(str, lost))}. Bring the old Kafka back and let the archiver finish, or "
            f"accept the loss, which is recorded for ever: "
            f"`tidemark master rebase {source} --accept-loss`."
        )
        self.lost = lost


class Compared(NamedTuple):
    """Of one partition: the last record of Kafka that the table has too, and the first that it has otherwise."""

    last_same: int | None = None
    first_other: int | None = None


@dataclass(frozen=True)
class Rebase:
    """What a rebase would record."""

    old: OffsetBase
    new: OffsetBase
    held: Cut
    begin: dict[int, int] = field(default_factory=dict)
    """The offsets in Kafka from which on records are new."""

    @property
    def lost(self) -> list[OffsetRange]:
        """The logical offsets between the table and the new records."""
        return list(ranges(self.held, self.new.begin))

    @property
    def proof(self) -> Proof:
        """The commit without its topic's name."""
        return Proof(Kind.REBASE, topic_id=self.new.topic_id, start=self.held, end=self.new.begin, base=self.new.base)


def check_is_needed(source: Source, held: Coverage, found: Positions, floor: Cut) -> None:
    """Raise NothingToRebase where Kafka is as the table knows it, PartitionsDiffer where the topic lacks partitions.

    `found` has Kafka's own offsets; `floor` is what others have seen of the topic beyond the table.
    """
    known = join(held.cut, floor)
    if missing := sorted({*range(source.partitions), *known} - found.latest.keys()):
        raise PartitionsDiffer(
            f"Topic {source.topic!r} has {len(found.latest)} partitions; the table of {source.name!r} and its "
            f"declaration also have {missing}. Give the topic {max(missing) + 1} partitions, then rebase."
        )
    behind = list(ranges(to_logical(held.base, found.latest), known))
    if held.offset_base.is_of(found.topic_id) and not behind:
        raise NothingToRebase(
            f"Source {source.name!r}: topic {source.topic!r} is the one that its master table knows (id "
            f"{found.topic_id}), and it ends at or after everything that was archived. There is nothing to "
            f"rebase. If the speed layer alone refuses to go on, `tidemark speed rebuild {source.name}` ends that."
        )


def plan_rebase(
    source: Source, held: Coverage, found: Positions, floor: Cut, compared: Mapping[int, Compared]
) -> Rebase:
    """Where the new records begin, and their bases. `compared` is of the offsets that Kafka and the table both have.

    Offsets of a new topic that Kafka has deleted already count as lost: it may have acknowledged them.
    """
    old = held.offset_base
    is_same_topic = old.topic_id == found.topic_id
    # What the same topic holds below the begin of its base is archived under other offsets.
    first = to_kafka(old.base, old.logical_earliest(found.earliest)) if is_same_topic else found.earliest
    begin, skipped = {}, {}
    has_ours = is_same_topic or any(each.last_same is not None for each in compared.values())
    removed = to_kafka(old.base, held.removed.cut) if has_ours else {}
    for partition, earliest in first.items():
        begin[partition], skipped[partition] = _begin(source, partition, earliest, compared.get(partition, Compared()))
        if is_same_topic:
            # What it deleted is archived, or lies beyond everything that is known: then it is lost.
            gone = earliest + old.base.get(partition, 0) - join(held.cut, floor).get(partition, 0)
            skipped[partition] = max(0, gone)
        if (archived := removed.get(partition, 0)) > begin[partition]:  # their rows cannot be compared any more
            begin[partition] = _after_removed(source, partition, archived, earliest, found.latest[partition])
            skipped[partition] = 0
    return Rebase(old, next_base(found.topic_id, held.cut, floor, begin, skipped), held.cut, begin)


def _after_removed(source: Source, partition: int, archived: int, earliest: int, latest: int) -> int:
    """The first new offset where retention removed all rows below `archived`, and Kafka may still hold the records."""
    if earliest < latest < archived:
        raise MixedRecords(
            f"Topic {source.topic!r}, partition {partition}: Kafka ends at {latest}, and retention removed the rows "
            f"below {archived} from the master table. So nobody can tell which of Kafka's records are new. Delete the "
            f"topic, run `tidemark topics apply`, send what is missing, then rebase."
        )
    return min(archived, latest)


def _begin(source: Source, partition: int, earliest: int, compared: Compared) -> tuple[int, int]:
    """The first new offset of a partition in Kafka, and how many before it nobody can read any more."""
    if compared.last_same is None:
        return earliest, earliest
    if compared.first_other is not None and compared.first_other < compared.last_same:
        raise MixedRecords(
            f"Topic {source.topic!r}, partition {partition}: the master table has Kafka's record {compared.last_same} "
            f"under the same offset, but another record than {compared.first_other} before it. So nobody can tell "
            f"which records are new. Delete the topic, run `tidemark topics apply`, send what is missing, then rebase."
        )
    return compared.last_same + 1, 0


def compare_records(
    spark: SparkSession,
    settings: Settings,
    bootstrap: str,
    source: Source,
    table: Path,
    held: Coverage,
    found: Positions,
) -> dict[int, Compared]:
    """Compare what Kafka holds with the rows of the same offsets, by the base so far.

    After an old backup of Kafka's disk was put back, Kafka begins with records that the table has; the first one that
    it does not have is new. A topic that was made again has none in common with the table, one that a tool copied
    with its offsets has all.
    """
    from pyspark.sql import functions as f

    from master_dataset.kafka.logical_records import with_logical_offsets

    first = to_kafka(held.base, held.offset_base.logical_earliest(found.earliest))
    starts = {p: min(first[p], found.latest[p]) for p in first}
    ends = {p: max(starts[p], min(found.latest[p], to_kafka(held.base, held.cut).get(p, 0))) for p in starts}
    if not any(ranges(starts, ends)):
        return {}
    topic = source.topic
    options = {
        "subscribe": topic,
        "startingOffsets": json.dumps({topic: cut_to_json(starts)}),
        "endingOffsets": json.dumps({topic: cut_to_json(ends)}),
        "includeHeaders": "true",
    }
    records = spark.read.format("kafka").options(**spark_kafka_options(settings, bootstrap), **options).load()
    records = with_logical_offsets(records, held.base).select("partition", "offset", *SAME)
    rows = spark.read.format("delta").load(str(table)).select("partition", "offset", *SAME)
    is_same = f.lit(True)
    for column in SAME:
        is_same &= f.col(f"ours.{column}").eqNullSafe(f.col(f"theirs.{column}"))
    at = f.col("theirs.offset")
    joined = records.alias("theirs").join(rows.alias("ours"), ["partition", "offset"])
    summed = joined.groupBy("partition").agg(
        f.max(f.when(is_same, at)).alias("last_same"), f.min(f.when(~is_same, at)).alias("first_other")
    )
    return {row["partition"]: _compared(row, held.base.get(row["partition"], 0)) for row in summed.collect()}


def _compared(row: Any, base: int) -> Compared:
    return Compared(*(None if offset is None else offset - base for offset in (row["last_same"], row["first_other"])))


def commit_rebase(spark: SparkSession, source: Source, table: Path, rebase: Rebase, check: Callable[[], None]) -> int:
    """Record a rebase. Returns the version. The caller holds the archiver's lock; `check` may still refuse."""
    from master_dataset.table.append import append, commit_lock

    proof = Proof(**{**vars(rebase.proof), "topic": source.topic})
    with commit_lock(table):
        return append(spark, table, None, proof, check=lambda _names: check()).version
