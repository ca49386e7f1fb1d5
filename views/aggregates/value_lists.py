r"""Lists of values in a state's parts, in Python and in Spark: what aggregates store that keep several values.

Numbers, dates and times stand in a text with commas between them. Texts stand in a blob, behind their lengths in bytes:

    [3, 12]      ->  "3,12"
    ["é", "/a"]  ->  b"2 2" 0a b"\xc3\xa9/a"

No values are no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from views.aggregates import numbers
from views.aggregates.algebra import Part
from views.field_types import FieldType

BETWEEN = ","


def to_part(values: Sequence[Any]) -> Part:
    """Values of one type as a part."""
    if not values:
        return None
    parts = [numbers.to_part(value) for value in values]
    blobs = [part for part in parts if isinstance(part, bytes)]
    if blobs:
        return " ".join(str(len(each)) for each in blobs).encode() + b"\n" + b"".join(blobs)
    return BETWEEN.join(map(str, parts))


def from_part(part: Part, kind: FieldType) -> list[Any]:
    """The inverse of `to_part`. ValueError where the part is none of this type."""
    if part is None:
        return []
    if not isinstance(part, bytes):
        return [numbers.from_part(each, kind) for each in part.split(BETWEEN)]
    head, _, texts = part.partition(b"\n")
    values, at = [], 0
    for size in map(int, head.split(b" ")):
        values.append(numbers.from_part(texts[at : at + size], kind))
        at += size
    if at != len(texts) or b"-" in head:
        raise ValueError(f"the texts of a list have {len(texts)} bytes, where {at} were expected")
    return values


def part_sql(array: str, kind: FieldType) -> str:
    """The same as `to_part`, in Spark, of an array without nulls; null of an empty one and of null."""
    if kind.kind == "string":
        lengths = f"array_join(transform({array}, each -> cast(octet_length(each) AS string)), ' ')"
        blob = f"concat(cast({lengths} AS binary), X'0A', cast(array_join({array}, '') AS binary))"
        return f"CASE WHEN size({array}) > 0 THEN {blob} END"
    texts = f"array_join(transform({array}, each -> {numbers.part_sql('each', kind)}), '{BETWEEN}')"
    return f"CASE WHEN size({array}) > 0 THEN {texts} END"
