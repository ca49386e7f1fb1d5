"""Records that say which schema wrote them: their frames as Spark columns (`views/formats/framing.py`).

A record whose schema is not among the writers is read as one of an unknown schema. Whoever counts or stores it looks at
`unknown_frame` first: where the registry knows such a schema after all, the records are read again with it. A schema
that was found late is known from a cut on only: records below it are those of an unknown schema for good.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from views.formats import framing
from views.formats.writer_schemas import WriterSchemas

if TYPE_CHECKING:
    from views.source import Source

FRAME, PAYLOAD = "_frame", "_payload"
UNKNOWN = " is unknown to the registry"


def with_payload(records: DataFrame, source: Source) -> DataFrame:
    """Records that have frames, with `_frame` and what is left: `_payload`. Others stay as they are."""
    if not source.is_framed:
        return records
    rest = f.expr(f"substring(value, {framing.ID_FRAME_BYTES + 1})")
    payload = f.when(_has_header(), f.col("value")).otherwise(rest)
    return records.withColumn(FRAME, _frame()).withColumn(PAYLOAD, payload)


def why_unframed(reason: Column, source: Source) -> Column:
    """Add to the reasons why a record is invalid that it has no frame, where it should."""
    return reason.when(f.col(FRAME).isNull(), framing.NOT_FRAMED) if source.is_framed else reason


def why_unreadable(reason: Column, source: Source, writers: WriterSchemas, unusable: dict[bytes, str]) -> Column:
    """Add to the reasons why a record is invalid what concerns its writer schema."""
    if not source.needs_writer_schemas:
        return reason
    frame = f.col(FRAME)
    reason = why_too_early(reason, source, writers)
    for each, why in sorted(unusable.items()):
        reason = reason.when(frame == f.lit(bytearray(each)), f"{framing.described(each)} cannot be read: {why}")
    return reason.when(~_is_one_of(frame, writers), f.concat(_described(frame), f.lit(UNKNOWN)))


def why_too_early(reason: Column, source: Source, writers: WriterSchemas) -> Column:
    """Add to the reasons that a record is older than the cut from which on its schema is known."""
    for frame, writer in sorted(writers.items()) if source.needs_writer_schemas else ():
        if writer is not None and writer.since:
            is_early = reduce(or_, [_is_before(partition, offset) for partition, offset in writer.since])
            is_this = f.coalesce(_frame() == f.lit(bytearray(frame)), f.lit(False))
            reason = reason.when(is_this & is_early, f"{framing.described(frame)}{UNKNOWN}")
    return reason


def _is_before(partition: int, offset: int) -> Column:
    return (f.col("partition") == partition) & (f.col("offset") < offset)


def unknown_frame(writers: WriterSchemas) -> Column:
    """Of a record with `value` and `headers`: its frame, if that names none of the writers; else null."""
    frame = f.when(f.col("value").isNotNull(), _frame())
    return f.when(frame.isNotNull() & ~_is_one_of(frame, writers), frame)


def unknown_frames(records: DataFrame, writers: WriterSchemas) -> set[bytes]:
    """The different frames of records that name none of the writers."""
    rows = records.select(unknown_frame(writers).alias(FRAME)).where(f.col(FRAME).isNotNull()).distinct()
    return {bytes(row[FRAME]) for row in rows.collect()}


def _frame() -> Column:
    """The frame of a record as `framing.split` has it; null where it has none."""
    value = f.col("value")
    before = f.when(
        (f.length(value) >= framing.ID_FRAME_BYTES) & (f.substring(value, 1, 1) == f.lit(bytearray(framing.ID_BYTE))),
        f.substring(value, 1, framing.ID_FRAME_BYTES),
    )
    given = f.element_at(f.filter("headers", _names_schema), -1)["value"]
    of_header = f.lit(None)
    for kind, size in ((framing.ID_BYTE, framing.ID_FRAME_BYTES), (framing.GUID_BYTE, framing.GUID_FRAME_BYTES)):
        is_this = (f.length(given) >= size) & (f.substring(given, 1, 1) == f.lit(bytearray(kind)))
        of_header = f.when(is_this, f.substring(given, 1, size)).otherwise(of_header)
    return f.when(_has_header(), of_header).otherwise(before)


def _has_header() -> Column:
    """Whether a header names the schema. Functions on arrays are slow; most records have no headers."""
    return f.col("headers").isNotNull() & (f.size("headers") > 0) & f.exists("headers", _names_schema)


def _names_schema(header: Column) -> Column:
    return header["key"] == framing.HEADER


def _is_one_of(frame: Column, writers: WriterSchemas) -> Column:
    known = [bytearray(each) for each, writer in writers.items() if writer is not None]
    return frame.isin(known) if known else f.lit(False)


def _described(frame: Column) -> Column:
    """As `framing.described` has it."""
    number = f.conv(f.hex(f.substring(frame, 2, 4)), 16, 10)
    digits = f.lower(f.hex(f.substring(frame, 2, 16)))
    parts = [f.substring(digits, first, size) for first, size in ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))]
    is_id = f.substring(frame, 1, 1) == f.lit(bytearray(framing.ID_BYTE))
    return f.concat(f.lit("schema "), f.when(is_id, f.concat(f.lit("id "), number)).otherwise(f.concat_ws("-", *parts)))
