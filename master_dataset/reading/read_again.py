"""Read old records by the reading in force, without Spark: for whoever verifies answers from every event.

The parsed columns of a master table are those of its first reading. Where another one is in force, the bytes are read
again, with the writer schemas that are noted beside the table. JSON is read by the collector's own checks, which are
stricter than Spark's: what they refuse although it was found valid when it was archived, nobody can judge here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from master_dataset.errors import InvalidEvent, MasterDatasetError
from master_dataset.events.raw_records import RawRecord, RecordReader
from master_dataset.reading.read import RecordFilter, read_records
from master_dataset.table.readings import is_of_first_reading
from master_dataset.writer_schemas.noted import SchemaNotes
from views.source import Source

COLUMNS = ["partition", "offset", "event_id", "event_time", "event"]
RAW_COLUMNS = ["topic", "partition", "offset", "timestamp", "value", "headers", "invalid"]


class OnlySparkReads(MasterDatasetError):
    """A record that the strict checks refuse, and Spark may not."""

    def __init__(self, source: Source, row: dict[str, Any], reason: InvalidEvent) -> None:
        super().__init__(
            f"Source {source.name!r}: the record at offset {row['offset']} of partition {row['partition']} was valid "
            f"when it was archived, and the strict checks refuse it as version {source.version} of the source reads "
            f"it ({reason}). Spark decides what it is; this cannot be verified without it."
        )


def read_valid_events(table: Path, source: Source, selected: RecordFilter) -> Iterator[dict[str, Any]]:
    """The valid events among some records, as rows with their location, id, time and fields."""
    if is_of_first_reading(table, source):
        for batch in read_records(table, selected, COLUMNS):
            yield from batch.to_pylist(maps_as_pydicts="strict")
        return
    everything = RecordFilter(start=selected.start, end=selected.end, with_invalid=True)
    reader = RecordReader(source, SchemaNotes(table, source).known())
    for batch in read_records(table, everything, RAW_COLUMNS):
        for row in batch.to_pylist():
            try:
                fields = reader.read(_record(row))
            except InvalidEvent as reason:
                if row["invalid"] is None:
                    raise OnlySparkReads(source, row, reason) from None
                continue
            yield _row(source, row, fields)


def _record(row: dict[str, Any]) -> RawRecord:
    headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
    timestamp_ms = round(row["timestamp"].timestamp() * 1000)
    return RawRecord(row["partition"], row["offset"], timestamp_ms, row["value"], headers)


def _row(source: Source, row: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    made_id = f"{row['topic']}/{row['partition']}/{row['offset']}"
    return {
        "partition": row["partition"],
        "offset": row["offset"],
        "event_id": fields[source.id_field] or made_id,
        "event_time": fields[source.time_field] or row["timestamp"],
        "event": fields,
    }
