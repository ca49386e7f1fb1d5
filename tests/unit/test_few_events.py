"""Views from a few events, folded in this process: against the oracle, run after run, and refused where files lie."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from batch_layer import day_files, few_events
from batch_layer.delta_commits import commit_files, make_log
from batch_layer.few_events import FewEvents, compute_few
from batch_layer.recompute import Job
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.entries import Entry
from hand_off.errors import BatchError
from hand_off.manifests import ViewData
from tests.conftest import assert_same
from views import in_memory
from views.aggregates import Count, Distinct, Last, Max, Sum
from views.columns import AT, Columns
from views.derived import Ratio
from views.in_memory import Event
from views.source import Source
from views.states import unpack
from views.view import View

SHOP = Source(
    "shop", fields="event_id string, event_time timestamp, item string, user_id string, cents int, price decimal(10,2)"
)
SALES = View(
    "sales",
    source=SHOP,
    grain="1h",
    keys={"item": "item"},
    where="cents >= 10",
    answers={
        "orders": Count(),
        "large": Count(where="cents > 50"),
        "share": Ratio("large", "orders"),
        "cents": Sum("cents"),
        "money": Sum("price"),
        "users": Distinct("user_id"),
        "dearest": Max("price"),
        "last": Last("user_id"),
    },
)
COLUMNS = Columns((SALES,))
SPARK = {"bucket": "timestamp", "item": "string", "state": "binary", "last": "string", "share": "double",
         "money": "decimal(20,2)", "dearest": "decimal(10,2)"}  # fmt: skip
SCHEMA = pa.schema({
    "bucket": pa.timestamp("us", "UTC"), "item": pa.string(), "cents": pa.int64(), "dearest": pa.decimal128(10, 2),
    "large": pa.int64(), "last": pa.string(), "money": pa.decimal128(20, 2), "orders": pa.int64(), "users": pa.int64(),
    "share": pa.float64(), "_events": pa.int64(), "state": pa.binary(),
})  # fmt: skip
FIRST = datetime(2026, 3, 1, tzinfo=UTC)


def as_spark(schema: pa.Schema) -> dict[str, Any]:
    fields = [{"name": n, "type": SPARK.get(n, "long"), "nullable": True, "metadata": {}} for n in schema.names]
    return {"type": "struct", "fields": fields}


def events(count: int, seed: int, days: int = 3) -> list[Event]:
    chance, found = Random(seed), []  # noqa: S311  made-up events
    for number in range(count):
        at = FIRST + timedelta(seconds=chance.randrange(days * 86_400))
        event_id = f"{seed}-{number}"
        fields = {
            "event_id": event_id, "event_time": at, "item": chance.choice(["a", "b", None, "\0ü"]),
            "user_id": chance.choice(["u1", "u2", "u3", None]), "cents": chance.choice([None, 5, 20, 99]),
            "price": chance.choice([None, Decimal("0.50"), Decimal("12.25")]),
        }  # fmt: skip
        found.append(Event(seed, number, event_id, at, fields))
    return found


def few(given: Iterable[Event]) -> FewEvents:
    """As Spark would evaluate them."""
    listed = list(given)
    expressions = {COLUMNS.of(each): each for each in _expressions(SALES)}
    micros = [(each.event_time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) for each in listed]
    columns: dict[str, Any] = {
        "partition": pa.array([each.partition for each in listed], pa.int32()),
        "offset": pa.array([each.offset for each in listed], pa.int64()),
        AT: pa.array(micros, pa.int64()),
    }
    for name, expression in expressions.items():
        columns[name] = pa.array([expression.evaluate(each.fields) for each in listed])
    return FewEvents(COLUMNS, pa.table(columns))


def _expressions(view: View) -> Iterable[Any]:
    found = [view.condition, *view.key_expressions.values()]
    found += [each for measure in view.measures.values() for each in (measure.of, measure.where)]
    return [each for each in found if each is not None]


class Made:
    """The table of the view, run after run."""

    def __init__(self, folder: Path) -> None:
        self.table = folder / "sales"
        self.schema = SCHEMA.with_metadata({few_events.SPARK_SCHEMA: json.dumps(as_spark(SCHEMA)).encode()})
        make_log(self.table, as_spark(SCHEMA), "there is no log")
        self.events: list[Event] = []
        self.data: ViewData | None = None

    def run(self, more: list[Event]) -> ViewData | None:
        job = Job(cast("Any", None), SALES, self.table, len(more))
        made = compute_few(job, self.schema, few(more), self.data)
        if made is not None:
            self.events += more
            self.data = made
        return made

    def rows(self) -> list[dict[str, Any]]:
        assert self.data is not None
        return [row for file in self.data.files for row in pq.ParquetFile(self.table / file.path).read().to_pylist()]

    def check(self) -> None:
        found = {}
        for row in self.rows():
            bucket = (row["bucket"] - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
            answers = SALES.present(unpack(SALES.algebras, row["state"]))
            assert (bucket, (row["item"],)) not in found
            found[bucket, (row["item"],)] = answers
            assert {name: row[name] for name in ("orders", "share", "last")} == {
                name: answers[name] for name in ("orders", "share", "last")
            }
            assert row["_events"] == answers["orders"], "none of these is left out"
        assert_same(found, in_memory.answers(SALES, self.events))
        assert self.data is not None
        assert self.data.totals["cents"] == str(sum(row["cents"] for row in self.rows()))
        assert self.data.rows == len(found)


def test_runs_of_few_events_are_the_oracle(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for seed, count in ((1, 200), (2, 1), (3, 90), (4, 0)):
        made.run(events(count, seed))
        made.check()
    assert made.data is not None
    assert made.data.kind == "continued"
    commit_files(made.table, made.data.files, 3)
    seen = DeltaTable(str(made.table)).to_pyarrow_table().to_pylist()
    assert sorted(row["state"] for row in seen) == sorted(row["state"] for row in made.rows())


def test_only_the_days_that_were_touched_are_rewritten(tmp_path: Path) -> None:
    made = Made(tmp_path)
    first = made.run(events(100, 1, days=5))
    second = made.run(events(40, 2, days=1))
    assert first is not None
    assert second is not None
    assert [file.day for file in second.files] == [f"2026-03-0{day}" for day in range(1, 6)]
    assert second.files[1:] == first.files[1:]
    assert second.files[0] != first.files[0]
    made.check()
    nothing = [replace(event, fields={**event.fields, "cents": None}) for event in events(5, 3)]
    third = made.run(nothing)
    assert third is not None
    assert third.files == second.files, "the view looks at none of them"


def test_other_engines_can_skip_files_by_their_statistics(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.run(events(200, 1))
    assert made.data is not None
    statistics = json.loads(json.loads(made.data.files[0].action)["add"]["stats"])
    assert statistics["numRecords"] == made.data.files[0].rows
    assert statistics["minValues"] == {"bucket": "2026-03-01T00:00:00.000Z", "item": "\0ü"}
    assert statistics["maxValues"] == {"bucket": "2026-03-01T23:00:00.000Z", "item": "b"}
    assert statistics["nullCount"]["item"] == sum(row["item"] is None for row in made.rows()[: made.data.files[0].rows])


@pytest.mark.parametrize("limit", ["MAX_OLD_ROWS", "MAX_OLD_BYTES"])
def test_large_days_are_left_to_spark(tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(tmp_path)
    made.run(events(100, 1))
    monkeypatch.setattr(few_events, limit, 10)
    assert made.run(events(5, 2)) is None
    made.check()


def test_events_that_were_lost_or_counted_twice_on_the_way_are_noticed(tmp_path: Path) -> None:
    made = Made(tmp_path)
    job = Job(cast("Any", None), SALES, made.table, 30)
    for count in (29, 31):
        with pytest.raises(BatchError, match=f"{count} events were read, the master has 30"):
            compute_few(job, made.schema, few(events(count, 1)), None)


def test_a_file_that_lost_rows_is_not_gone_on_from(tmp_path: Path) -> None:
    made = Made(tmp_path)
    data = made.run(events(100, 1))
    assert data is not None
    path = made.table / data.files[0].path
    rows = pq.ParquetFile(path).read()
    pq.write_table(rows.slice(1), path)
    with pytest.raises(BatchError, match=f"{data.files[0].rows - 1} rows are in files that had"):
        made.run(events(50, 2, days=1))


def test_rows_of_several_files_are_split_by_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark's tasks write them: each sorted by bucket, all with any days; also days before 1970, and none at all."""
    monkeypatch.setattr(day_files, "BATCH_ROWS", 7)
    chance, files, everything = Random(5), [], []  # noqa: S311  made-up rows
    for number, rows in enumerate((40, 0, 25, 1)):
        hours = sorted(chance.randrange(-72, 400) for _ in range(rows))
        at = pa.array([hour * 3_600_000_000 for hour in hours], pa.timestamp("us", "UTC"))
        table = pa.table({"bucket": at, "item": [f"{number}-{row}" for row in range(rows)]})
        table = table.cast(pa.schema({"bucket": at.type, "item": pa.string()}, {b"mine": b"kept"}))
        files.append(tmp_path / f"{number}.parquet")
        pq.write_table(table, files[-1])
        everything += [(f"{row['bucket']:%Y-%m-%d}", row["item"]) for row in table.to_pylist()]
    made = day_files.split_days(tmp_path / "sales", files, ["item"])
    day_files.sync_files(tmp_path / "sales", made)
    found = []
    for file in made:
        rows_of_day = pq.ParquetFile(tmp_path / "sales" / file.path).read()
        assert rows_of_day.schema.metadata[b"mine"] == b"kept"
        assert (len(rows_of_day), (tmp_path / "sales" / file.path).stat().st_size) == (file.rows, file.bytes)
        found += [(f"{row['bucket']:%Y-%m-%d}", row["item"]) for row in rows_of_day.to_pylist()]
        assert {day for day, _ in found[-file.rows :]} == {file.day}
    assert len({file.day for file in made}) == len(made), "one file a day"
    assert sorted(found) == sorted(everything)


# ---- how many there will be --------------------------------------------------------


@pytest.mark.parametrize(
    ("published", "held", "full", "expected"),
    [
        (None, few_events.MAX_EVENTS, False, True),
        (None, few_events.MAX_EVENTS + 1, False, False),
        (1_000_000, 1_000_000, False, True),
        (1_000_000, 1_000_000 + few_events.MAX_EVENTS, False, True),
        (1_000_000, 1_000_001 + few_events.MAX_EVENTS, False, False),
        (1_000_000, 1_000_001, True, False),
        (100, 200, True, True),
    ],
)
def test_few_events_are_expected_by_what_came_since_the_last_run(
    tmp_path: Path, published: int | None, held: int, full: bool, expected: bool
) -> None:
    folder = BatchFolder(tmp_path)
    if published is not None:
        publish_log.append(folder, Entry(1, {0: published}, {SALES.name: SALES.hash}, 1.0))
    assert few_events.are_few_expected(folder, [SALES], {0: held}, full=full) == expected


def test_a_new_view_needs_all_events(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path)
    publish_log.append(folder, Entry(1, {0: 1_000_000}, {SALES.name: "another hash"}, 1.0))
    assert not few_events.are_few_expected(folder, [SALES], {0: 1_000_001}, full=False)


def test_a_run_after_a_rollback_needs_all_events(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path)
    for run in (1, 2):
        publish_log.append(folder, Entry(run, {0: 1_000_000}, {SALES.name: SALES.hash}, 1.0))
    folder.runs.mkdir(parents=True)
    folder.manifest(1).write_text("{}")
    publish_log.serve(folder, 1)
    assert not few_events.are_few_expected(folder, [SALES], {0: 1_000_001}, full=False)
