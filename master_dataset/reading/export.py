"""Write records to files: NDJSON with one line per record, or Parquet with the table's own columns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from master_dataset.events.json_bytes import text_or_base64


def write_ndjson(batches: Iterator[pa.RecordBatch], out: Any) -> int:
    """One line per record: its location, times, key, headers and value. Returns the count."""
    count = 0
    for batch in batches:
        for row in batch.to_pylist():
            out.write(orjson.dumps(_as_json(row)) + b"\n")
            count += 1
    return count


def write_parquet(batches: Iterator[pa.RecordBatch], path: Path, table: Path) -> int:
    """The same columns as the table, even without a record. Returns the count."""
    first = next(batches, None)
    count = 0
    with pq.ParquetWriter(path, table_schema(table) if first is None else first.schema) as writer:
        for batch in chain(() if first is None else [first], batches):
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def table_schema(table: Path) -> pa.Schema:
    """The table's columns, from the commit that created it: a table without records has no data file."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    lines = (table / "_delta_log" / f"{0:020}.json").read_bytes().splitlines()
    text = next(action["metaData"]["schemaString"] for action in map(orjson.loads, lines) if "metaData" in action)
    schema: pa.Schema = to_arrow_schema(StructType.fromJson(orjson.loads(text)), timezone="UTC")
    return schema


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    headers = [{"key": header["key"], **text_or_base64("value", header["value"])} for header in row["headers"] or ()]
    shown = {name: row[name] for name in ("topic", "partition", "offset", "timestamp", "event_time", "event_id")}
    if row["invalid"]:
        shown["invalid"] = row["invalid"]
    return {**shown, **text_or_base64("key", row["key"]), "headers": headers, **text_or_base64("value", row["value"])}
