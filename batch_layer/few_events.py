"""Compute views from a few events in this process: Spark evaluates their expressions once, for all views together.

    evaluated columns -> folded states -> merged with those of the days that they touch -> a new file for each day

A Spark aggregation, and one more job to merge, cost seconds for each view however few the events are. Both ways give
the same (tests/spark/test_batch_runs.py), as in the speed layer.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal, localcontext
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from batch_layer import verify_totals
from batch_layer.day_files import read_day, sync_files, write_day
from batch_layer.parquet_files import DIGITS
from batch_layer.recompute import Job, check_files, check_read, check_rows, paths_of, view_data
from batch_layer.tables import ensure_log
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.errors import BatchError
from hand_off.manifests import DataFile, ViewData
from master_dataset.cut import Cut, count_between
from views.aggregates import Count
from views.columns import Columns, Place, add_rows, groups_of, zero
from views.keys import pack_key, unpack_key
from views.on_spark.states import COUNTED, SPARK_SCHEMA
from views.states import Reader, merge, pack
from views.view import View

MAX_EVENTS = 20_000
"""A run with more new events than this asks Spark."""
MAX_OLD_ROWS = 500_000
"""And so does one that touches days with more groups than this, or more bytes."""
MAX_OLD_BYTES = 2**27
MICROS = 1_000_000


def are_few_expected(folder: BatchFolder, views: Iterable[View], held: Cut, *, full: bool) -> bool:
    """Whether a run will probably have few events, by what the master dataset holds. A wrong guess costs time alone."""
    try:
        newest, pinned = publish_log.last(folder), publish_log.pinned(folder)
    except BatchError:  # the run itself repairs the log, or says what is wrong with it
        return False
    is_all = full or pinned is not None or any(view.hash not in newest.catalog.values() for view in views)
    return count_between({} if is_all else newest.cut, held) <= MAX_EVENTS


@dataclass(frozen=True)
class FewEvents:
    """Valid events without duplicates, evaluated."""

    columns: Columns
    values: pa.Table

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.values.num_rows)

    @cached_property
    def table(self) -> dict[str, list[Any]]:
        """Their values by column."""
        return {name: self.values[name].to_pylist() for name in self.values.column_names}

    def totals(self, view: View) -> verify_totals.Totals:
        """What must be in the files of a view: taken of the events themselves, not of their groups."""
        rows: Sequence[int] = range(self.count)
        if view.condition is not None:
            rows = self._where(rows, self.columns.of(view.condition))
        found = {verify_totals.READ: Decimal(self.count), COUNTED: Decimal(len(rows))}
        with localcontext(prec=DIGITS):
            for name in verify_totals.exact_answers(view):
                measure, wanted = view.measures[name], rows
                if measure.where is not None:
                    wanted = self._where(wanted, self.columns.of(measure.where))
                values = [1] * len(wanted)
                if measure.of is not None:
                    column = self.table[self.columns.of(measure.of)]
                    values = [column[row] for row in wanted if column[row] is not None]
                is_count = isinstance(view.answers[name], Count)
                found[name] = Decimal(len(values)) if is_count else sum(map(Decimal, values), Decimal(0))
        return found

    def _where(self, rows: Sequence[int], column: str) -> list[int]:
        condition = self.table[column]
        return [row for row in rows if condition[row]]


class Folded(NamedTuple):
    """A group: how many events it has, and their states."""

    events: int
    states: dict[str, Any]


def compute_few(job: Job, schema: pa.Schema, few: FewEvents, base: ViewData | None) -> ViewData | None:
    """All groups of a view, or those of an earlier run with these events. `schema` is that of the view's files.

    None where the days that the events touch are too large to be rewritten here.
    """
    begin = time.monotonic()
    fresh = few.totals(job.view)
    check_read(job, fresh)
    if base is not None and not few.count:  # all that came were duplicates or invalid
        return replace(base, kind="continued", seconds=0.0)
    days = _days(job.view, few)
    rewritten = [file for file in base.files if file.day in days] if base is not None else []
    if sum(file.rows for file in rewritten) > MAX_OLD_ROWS or sum(file.bytes for file in rewritten) > MAX_OLD_BYTES:
        return None
    check_rows(job, rewritten)
    ensure_log(job.spark, job.table, json.loads(schema.metadata[SPARK_SCHEMA]))
    writer, files = _Days(job.view, schema), list[DataFile]()
    for day, groups in sorted(days.items()):
        old = read_day(paths_of(job, [file for file in rewritten if file.day == day]), schema)
        files.append(write_day(job.table, day, writer.merged(old, writer.fold(few, groups)), [*job.view.keys]))
    sync_files(job.table, files)
    added = {name: value for name, value in fresh.items() if name != verify_totals.READ}
    before = verify_totals.of_files(paths_of(job, rewritten), job.view)
    check_files(job, files, verify_totals.added(before, added))
    if base is None:
        return view_data(job, "full", files, added, begin)
    kept = [file for file in base.files if file not in rewritten]
    total = verify_totals.added(verify_totals.from_json(base.totals), added)
    return replace(view_data(job, "continued", [*kept, *files], total, begin), since=base.since)


Groups = Mapping[Place, list[int]]


def _days(view: View, few: FewEvents) -> dict[str, dict[Place, list[int]]]:
    """The groups of the events by day, each with the rows of its events."""
    found: defaultdict[str, dict[Place, list[int]]] = defaultdict(dict)
    for place, rows in groups_of(view, few.columns, few.table, range(few.count)).items():
        found[datetime.fromtimestamp(place[0], UTC).date().isoformat()][place] = rows
    return dict(found)


@dataclass(frozen=True)
class _Days:
    """Makes the rows of days."""

    view: View
    schema: pa.Schema

    def fold(self, few: FewEvents, groups: Groups) -> dict[Place, Folded]:
        """The states of each group."""
        found = {}
        for place, rows in groups.items():
            states = zero(self.view)
            add_rows(self.view, few.columns, few.table, states, rows)
            found[place] = Folded(len(rows), states)
        return found

    def merged(self, old: pa.Table, new: dict[Place, Folded]) -> pa.Table:
        """The rows of a day with new groups; those that both have are merged, the others stay as they are."""
        reader, stays = Reader(self.view.algebras), [True] * len(old)
        buckets = {bucket for bucket, _ in new}
        keys = [old[name].to_pylist() for name in self.view.keys]
        for row, micros in enumerate(old["bucket"].cast("int64").to_pylist()):
            if micros // MICROS not in buckets:
                continue
            place = (micros // MICROS, pack_key([key[row] for key in keys]))
            if place in new:
                stays[row] = False
                known = reader.unpack(old["state"][row].as_py())
                states = merge(self.view.algebras, known, new[place].states)
                new[place] = Folded(old[COUNTED][row].as_py() + new[place].events, states)
        rows = pa.concat_tables([old.filter(pa.array(stays, pa.bool_())), self._rows(new)])
        return rows.sort_by("bucket")

    def _rows(self, groups: Mapping[Place, Folded]) -> pa.Table:
        return pa.Table.from_arrays([self._column(field, groups) for field in self.schema], schema=self.schema)

    def _column(self, field: pa.Field, groups: Mapping[Place, Folded]) -> pa.Array:
        name, view, found = field.name, self.view, groups.values()
        if name == "bucket":
            values: list[Any] = [bucket * MICROS for bucket, _ in groups]
        elif name in view.keys:
            at = [*view.keys].index(name)
            values = [unpack_key(key)[at] for _, key in groups]
        elif name == COUNTED:
            values = [group.events for group in found]
        elif name == "state":
            values = [pack(view.algebras, group.states) for group in found]
        elif name in view.derived:
            values = [view.present(group.states, [name])[name] for group in found]
        else:
            values = [view.algebras[name].column_value(group.states[name]) for group in found]
        return pa.array(values, field.type)
