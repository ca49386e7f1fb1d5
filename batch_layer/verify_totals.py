"""Totals that must not change on the way from the master dataset into the files of a batch view.

They are taken of the events before they are grouped, and of the files after they were written: whatever a shuffle,
a merge or a disk loses in between makes them differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f

from batch_layer.parquet_files import sum_columns
from hand_off.errors import BatchError
from views.aggregates import Count, Sum
from views.on_spark.states import COUNTED
from views.types import DOUBLE
from views.view import View

Totals = dict[str, Decimal]
READ = "_read"
"""How many events were read, before the view's `where`."""


def observed(events: DataFrame, view: View) -> tuple[DataFrame, Observation]:
    """The events, and what is counted of them while they pass."""
    seen = Observation()
    return events.observe(seen, *_columns(view)), seen


def of_events(events: DataFrame, view: View) -> Totals:
    """The same by a job of its own: for when counting on the way gave nothing, or something odd."""
    (found,) = events.agg(*_columns(view)).collect()
    return {name: Decimal(found[name]) for name in (READ, COUNTED, *exact_answers(view))}


def _columns(view: View) -> list[Column]:
    passes = f.expr(view.condition.spark_sql) if view.condition is not None else f.lit(True)
    totals = [f.count(f.lit(1)).alias(READ), f.count(f.when(passes, 1)).alias(COUNTED)]
    for name in exact_answers(view):
        measure = view.measures[name]
        wanted = passes if measure.where is None else passes & f.expr(measure.where.spark_sql)
        value = f.lit(1) if measure.of is None else f.expr(measure.of.spark_sql)
        chosen = f.when(wanted, value)
        totals.append(_total(view, name, chosen).alias(name))
    return totals


def exact_answers(view: View) -> list[str]:
    """The answers whose total is exact: counts, and sums of whole numbers and decimals."""
    return [
        name
        for name, measure in view.measures.items()
        if isinstance(view.answers[name], Count)
        or (isinstance(view.answers[name], Sum) and measure.of is not None and measure.of.type != DOUBLE)
    ]


def _total(view: View, name: str, value: Column) -> Column:
    if isinstance(view.answers[name], Count):
        return f.count(value)
    kind = view.measures[name].of
    scale = kind.type.scale if kind is not None else 0
    return f.coalesce(f.sum(value.cast(f"decimal(38,{scale})")), f.lit(0))


def of_files(files: Iterable[Path], view: View) -> Totals:
    """The totals of rows of a batch view, in its files."""
    return sum_columns(files, [COUNTED, *exact_answers(view)])


def of_observation(seen: Observation, view: View) -> Totals | None:
    """The totals of the events that passed; None where Spark saw that nothing can come out, and left the job out."""
    found = values_of(seen)
    return None if found is None else {name: Decimal(found[name]) for name in (READ, COUNTED, *exact_answers(view))}


def values_of(seen: Observation) -> dict[str, Any] | None:
    """What was counted on the way; None where Spark left out the part of the job that would have counted."""
    try:
        return seen.get or None
    except Py4JJavaError:  # it stumbles over an empty result
        return None


def added(left: Mapping[str, Decimal], right: Mapping[str, Decimal]) -> Totals:
    """Both together."""
    return {name: left.get(name, Decimal(0)) + value for name, value in right.items()}


def check_equal(view: View, found: Mapping[str, Decimal], expected: Mapping[str, Decimal]) -> None:
    """Raise BatchError where a total of the files is not that of the events."""
    for name, value in found.items():
        if value != expected[name]:
            raise BatchError(
                f"View {view.name!r}: the files written have a total of {value} for {name!r}, the events of the master "
                f"dataset {expected[name]}. Nothing was published. Run again with `tidemark batch run --full`; if it "
                "happens again, check the disk."
            )


def to_json(totals: Mapping[str, Decimal]) -> dict[str, str]:
    """As text, exactly."""
    return {name: str(value) for name, value in totals.items() if name != READ}


def from_json(value: Mapping[str, str]) -> Totals:
    """The inverse of `to_json`."""
    return {name: Decimal(text) for name, text in value.items()}
