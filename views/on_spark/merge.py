"""Merge two sets of states on Spark: rows of one set stay unchanged, rows of both are merged in Python."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from views.aggregates import Algebra
from views.on_spark.states import COUNTED, with_derived
from views.states import merge, pack, unpack
from views.view import View

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def merged(left: DataFrame, right: DataFrame, view: View) -> DataFrame:
    """States of two disjoint sets of events, in the columns of `states` -> those of both together.

    Python does the merging (no built-in function can), but only for the rows that both sides have.
    """
    group = ["bucket", *view.keys]
    stored = [name for name in left.columns if name not in view.derived]
    left, right = left.select(*stored), right.select(*stored)
    is_same = reduce(and_, [left[name].eqNullSafe(right[name]) for name in group])
    joined = left.join(right, is_same, "full_outer").persist(StorageLevel.MEMORY_AND_DISK)
    in_both = left["state"].isNotNull() & right["state"].isNotNull()
    alone = joined.where(~in_both).select(*(f.coalesce(left[name], right[name]).alias(name) for name in stored))
    both = joined.where(in_both).select(
        *(left[name].alias(name) for name in group),
        (left[COUNTED] + right[COUNTED]).alias(COUNTED),
        *_two_states(left["state"], right["state"]),
    )
    merging = _Merging(view.algebras, left.schema, tuple(group))
    return with_derived(alone.unionByName(both.mapInArrow(merging, left.schema)), view)


def _two_states(left: Column, right: Column) -> list[Column]:
    return [left.alias("_left"), right.alias("_right")]


class _Merging:
    """What Spark's Python workers run: Arrow batches with two states a row -> batches with the merged one."""

    def __init__(self, algebras: dict[str, Algebra], schema: StructType, group: tuple[str, ...]) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self.algebras, self.group = algebras, group
        self.schema = to_arrow_schema(schema, timezone="UTC")

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            states = [
                merge(self.algebras, unpack(self.algebras, left), unpack(self.algebras, right))
                for left, right in zip(batch["_left"].to_pylist(), batch["_right"].to_pylist(), strict=True)
            ]
            yield pa.RecordBatch.from_arrays(
                [self._column(field, batch, states) for field in self.schema], schema=self.schema
            )

    def _column(self, field: pa.Field, batch: pa.RecordBatch, states: list[dict[str, Any]]) -> pa.Array:
        if field.name in self.group or field.name == COUNTED:
            return batch[field.name].cast(field.type)
        if field.name == "state":
            return pa.array([pack(self.algebras, state) for state in states], field.type)
        algebra = self.algebras[field.name]
        return pa.array([algebra.column_value(state[field.name]) for state in states], field.type)
