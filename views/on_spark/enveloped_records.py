"""Records in an envelope -> the JSON of their events, by the Python code that all layers share.

A Python worker does it: what a CloudEvent is, and what becomes of free values, is the collector's rule to the letter
(`views/formats/cloudevents.py`). Spark parses and judges the JSON that comes out like that of any other source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from views.errors import InvalidEvent
from views.formats.cloudevents_in_kafka import Resolve, resolver

if TYPE_CHECKING:
    from views.source import Source

CONTENT, WHY = "_content", "_why_enveloped"
"""Columns: the JSON of an event, or null; and why there is none, or null."""


def with_content(records: DataFrame, source: Source) -> DataFrame:
    """Records that may be in an envelope, with `_content` and `_why_enveloped`."""
    added = StructType.fromDDL(f"{CONTENT} binary, {WHY} string")
    fields: list[StructField] = [*records.schema.fields, *added.fields]  # type: ignore[attr-defined]
    return records.mapInArrow(_Resolving(source), StructType(fields))


@dataclass
class _Resolving:
    """Runs in Spark's Python workers."""

    source: Source

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        resolve = resolver(self.source)
        for batch in batches:
            values = batch.column("value").to_pylist()
            headers = batch.column("headers").to_pylist()
            found = [_resolved(resolve, *each) for each in zip(values, headers, strict=True)]
            columns = [
                pa.array([each[0] for each in found], pa.binary()),
                pa.array([each[1] for each in found], pa.string()),
            ]
            yield pa.RecordBatch.from_arrays([*batch.columns, *columns], names=[*batch.schema.names, CONTENT, WHY])


def _resolved(
    resolve: Resolve, value: bytes | None, headers: list[dict[str, Any]] | None
) -> tuple[bytes | None, str | None]:
    try:
        return resolve(value, [(each["key"], each["value"]) for each in headers or ()]), None
    except InvalidEvent as error:
        return None, str(error)
