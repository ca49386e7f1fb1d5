"""Batch runs on a real master table: against the oracle, continued and full, killed at every step, two at once."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lmdb
import pytest

from batch_layer import duplicates, duplicates_in_memory, few_events, recompute, upstream
from batch_layer.delta_commits import PROPERTIES
from batch_layer.delta_log import exposed_run, read_log
from batch_layer.failures import read_failures
from batch_layer.index import Index, Level, Tile, open_index
from batch_layer.index.workers import SparkWorkers
from batch_layer.lease import lease
from batch_layer.master_snapshot import MasterSnapshot
from batch_layer.progress import quiet
from batch_layer.pruning import prune
from batch_layer.run import run_batch
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.errors import BatchError, LeaseHeld, NothingArchived, RunRefused, RunTimedOut, TablesBehind
from hand_off.generations import Opening
from hand_off.manifests import Manifest, read_manifest
from infra.process_status import status_path
from infra.settings import Settings, load_settings
from master_dataset.table.append import append, commit_lock, create_table
from master_dataset.table.fields import SourceChanged
from master_dataset.table.paths import table_path
from master_dataset.table.proofs import Kind, Proof
from tests.conftest import Killed, assert_same, dying_at, interpreted, wait_until
from views import in_memory
from views.in_memory import Event
from views.keys import unpack_key
from views.on_spark.events import with_event
from views.sample_events import SampleRecord, generate
from views.source import Source
from views.states import unpack
from views.view import View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DECLARED = """
from views.aggregates import Average, Count, Distinct, First, Histogram, Last, Max, Min, Quantiles, Sum, TopK
from views.derived import Ratio
from views.source import Source
from views.view import View

shop = Source(
    "shop",
    fields="event_id string, event_time timestamp, user_id string, item string, cents int, big bigint, "
    "price decimal(10,2), ms double",
)
sales = View(
    "sales",
    source=shop,
    grain="1h",
    keys={"item": "item"},
    where="cents is not null",
    answers={
        "orders": Count(),
        "large": Count(where="cents >= 99"),
        "share": Ratio("large", "orders"),
        "cents": Sum("cents"),
        "big": Sum("big"),
        "money": Sum("price"),
        "mean": Average("ms"),
        "users": Distinct("user_id"),
        "few": Distinct("user_id", exact=True, at_most=3),
        "ms": Quantiles("ms"),
        "top": TopK("user_id", k=3),
        "spread": Histogram("ms", bounds=(0, 1, 100)),
        "smallest": Min("price"),
        "largest": Max("user_id"),
        "first": First("user_id"),
        "last": Last("big"),
    },
)
totals = View("totals", source=shop, grain="1d", answers={"events": Count(), "users": Distinct("user_id")})
nothing = View("nothing", source=shop, where="item = 'none'", answers={"events": Count()})
"""
SMALL = f"""{DECLARED.partition("sales = View(")[0]}
sales = View(
    "sales", source=shop, keys={{"item": "item"}},
    answers={{"orders": Count(), "cents": Sum("cents"), "money": Sum("price"), "users": Distinct("user_id")}},
)
"""
POISON = (b"{", b"", b'{"cents": "many"}', b"\xff", None)
STEPS = ("run.after_number", "run.after_duplicates", "run.after_views", "run.before_publish", "run.after_publish")


class Shop:
    """A home with the views above and a master table that tests append to, without Kafka."""

    def __init__(self, spark: SparkSession, home: Path, declared: str = SMALL) -> None:
        self.spark = spark
        views_dir = home / "views"
        views_dir.mkdir(parents=True)
        (views_dir / "shop.py").write_text(declared)
        self.settings: Settings = load_settings(home=home / "home", views_dir=views_dir, with_examples=False)
        self.settings.home.mkdir()
        self.folder = BatchFolder.of(self.settings, "shop")
        self.source, self.views = self.declared()
        self.events: list[Event] = []
        self.cut: dict[int, int] = {}
        self.table = table_path(self.settings, "shop")
        create_table(spark, self.table, self.source)

    def declared(self) -> tuple[Source, dict[str, View]]:
        from views.declarations import load_declarations

        found = load_declarations(self.settings.views_dir, with_catalog=False)
        return found.source("shop"), {view.name: view for view in found.views_of("shop")}

    def archive(self, records: list[SampleRecord], poison: int = 0) -> None:
        """Append records after what is there: their offsets move up; some poison goes between them."""
        rows: list[tuple[Any, ...]] = []
        start = dict(self.cut) or {0: 0, 1: 0, 2: 0}
        next_offset = dict(start)
        for place, record in enumerate(records):
            event, partition = record.event, record.event.partition
            if place < poison:
                rows.append(self._row(partition, next_offset[partition], POISON[place % len(POISON)]))
                next_offset[partition] += 1
            offset = next_offset[partition]
            rows.append(self._row(partition, offset, record.value))
            self.events.append(Event(partition, offset, event.event_id, event.event_time, event.fields))
            next_offset[partition] += 1
        frame = self.spark.createDataFrame(
            rows,
            "topic string, partition int, offset bigint, timestamp timestamp, timestampType int, key binary, "
            "value binary, headers array<struct<key:string,value:binary>>",
        )
        proof = Proof(Kind.APPEND, "shop", "topic-id", start=start, end=next_offset)
        with commit_lock(self.table):
            append(self.spark, self.table, with_event(frame, self.source), proof)
        self.cut = next_offset

    @staticmethod
    def _row(partition: int, offset: int, value: bytes | None) -> tuple[Any, ...]:
        return ("shop", partition, offset, datetime(2026, 3, 1, tzinfo=UTC), 0, None, value, None)

    def run(self, **options: Any) -> Manifest:
        return run_batch(self.settings, "shop", spark=self.spark, **options)

    def answers(self, view: str, run: int | None = None) -> dict[Any, dict[str, Any]]:
        """What the files of a run say: states unpacked and presented as the serving layer will do it."""
        import pyarrow.parquet as pq

        number = publish_log.served(self.folder).run if run is None else run
        data = read_manifest(self.folder, number).view(view)
        declared = self.views[view]
        found: dict[Any, dict[str, Any]] = {}
        for file in data.files:
            table = self.folder.table(view, data.hash) / file.path
            for row in pq.ParquetFile(table).read().to_pylist():
                micros = (row["bucket"] - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
                group = (micros, tuple(row[name] for name in declared.keys))
                assert group not in found, "a group stands in two rows"
                found[group] = declared.present(unpack(declared.algebras, row["state"]))
        return found

    def expected(self, view: str) -> dict[Any, dict[str, Any]]:
        return in_memory.answers(self.views[view], self.events)

    def check(self, run: int | None = None) -> None:
        """Files and read index say what the oracle does."""
        for name in self.views:
            expected = self.expected(name)
            assert_same(self.answers(name, run), expected)
            assert_same(self.indexed(name), expected)

    def indexed(self, view: str) -> dict[Any, dict[str, Any]]:
        """What the read index of the served run says of the groups; its months must hold the same events."""
        declared, found = self.views[view], {}
        with closing(self.open_index(view)) as opened:
            for tile in opened.of_prefix(Level.GRAIN, b"", 0, 2**40):
                found[(tile.bucket * 1_000_000, unpack_key(tile.key))] = self.presented(declared, tile)
            assert opened.groups == len(found)
            months = [self.presented(declared, tile) for tile in opened.totals(Level.MONTH, 0, 2**40)]
            for name in {"orders", "events", "n"} & {*declared.answers}:
                assert sum(month[name] for month in months) == sum(group[name] for group in found.values())
        return found

    def open_index(self, view: str) -> Index:
        data = read_manifest(self.folder, publish_log.served(self.folder).run).view(view)
        return open_index(self.folder.indexes / name for name in data.index)

    @staticmethod
    def presented(view: View, tile: Tile) -> dict[str, Any]:
        return view.present(unpack(view.algebras, tile.state))


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The session of all tests, interpreting; tests/spark/test_states.py runs the same jobs compiled."""
    with interpreted(spark) as session:
        yield session


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path)


def made(shop: Shop, count: int, seed: int, **options: Any) -> list[SampleRecord]:
    return generate(shop.source, count, seed, views=shop.views.values(), **options)


def later(records: list[SampleRecord], days: int) -> list[SampleRecord]:
    """The same events, but of another day and with other ids."""
    from views.sample_events import encode

    moved = []
    for record in records:
        event = record.event
        at = event.event_time + timedelta(days=days)
        fields = {**event.fields, "event_id": f"{event.event_id}+{days}", "event_time": at}
        moved.append(
            SampleRecord(encode(fields).encode(), Event(event.partition, event.offset, fields["event_id"], at, fields))
        )
    return moved


@pytest.fixture(params=["few", "many", "very many"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All ways to compute a view, whatever the size: in this process; by Spark; by Spark with the files of days."""
    if request.param != "few":
        by_spark(monkeypatch)
    if request.param == "very many":
        monkeypatch.setattr(recompute, "MAX_SPLIT_ROWS", 0)
    return str(request.param)


def by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_events, "MAX_EVENTS", 0)


@pytest.mark.usefixtures("way")
def test_runs_answer_what_the_oracle_does(spark: SparkSession, tmp_path: Path) -> None:
    """Every aggregate, with late, duplicate, invalid and null events: a first run, one that goes on, and a full one."""
    shop = Shop(spark, tmp_path, DECLARED)
    first = made(shop, 500, 2)
    shop.archive(first, poison=7)
    manifest = shop.run()
    shop.check()
    assert manifest.cut == shop.cut
    assert (manifest.events, manifest.invalid) == (len(shop.events) + 7, 7)
    assert manifest.duplicates == len(shop.events) - len(in_memory.counted(shop.events)) > 0
    assert publish_log.served(shop.folder).run == manifest.run == 1
    # New days, late events into old days, and duplicates of events of the earlier run.
    shop.archive(later(first[:200], 1) + first[:50] + later(first[200:260], -1) + made(shop, 100, 3), poison=3)
    continued = shop.run()
    assert (manifest.kind, continued.kind, continued.base_run) == ("full", "continued", 1)
    shop.check()
    full = shop.run(full=True)
    assert full.kind == "full"
    for name in shop.views:
        assert_same(shop.answers(name, continued.run), shop.answers(name, full.run))
    assert full.view("sales").totals == continued.view("sales").totals
    assert full.duplicates == continued.duplicates
    assert (full.events, full.invalid) == (continued.events, continued.invalid)


ROUNDED = ("mean", "ms", "state")
"""Columns of the view `sales` whose values depend on the order in which events were added."""


def test_few_events_and_many_are_computed_alike(spark: SparkSession, tmp_path: Path) -> None:
    """The same columns with the same types and values, and states that say the same but for sketches and rounding.

    A run in this process goes on from one of Spark's, and one of Spark's from that.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    shop = Shop(spark, tmp_path, DECLARED)
    found: dict[str, dict[str, pa.Table]] = {"few": {}, "many": {}}
    for number, (seed, way) in enumerate([(60, "many"), (61, "few"), (62, "many")]):
        shop.archive(made(shop, 150, seed), poison=2)
        with pytest.MonkeyPatch.context() as patch:
            if way == "many":
                by_spark(patch)
            assert shop.run().kind == ("continued" if number else "full")
            shop.check()
    for way in found:
        with pytest.MonkeyPatch.context() as patch:
            if way == "many":
                by_spark(patch)
            manifest = shop.run(full=True)
        for view in shop.views.values():
            data = manifest.view(view.name)
            table = shop.folder.table(view.name, view.hash)
            rows = [pq.ParquetFile(table / file.path).read() for file in data.files]
            if rows:
                order = [(name, "ascending") for name in ("bucket", *view.keys)]
                found[way][view.name] = pa.concat_tables(rows).sort_by(order)
            assert data.totals == read_manifest(shop.folder, 3).view(view.name).totals
    assert [*found["few"]] == [*found["many"]] != []
    for few, many in zip(*(each.values() for each in found.values()), strict=True):
        assert few.schema.remove_metadata() == many.schema.remove_metadata()
        for name in few.column_names:
            if name not in ROUNDED:
                assert few[name].to_pylist() == many[name].to_pylist(), name
    view = shop.views["sales"]
    for few, many in zip(*(each["sales"]["state"].to_pylist() for each in found.values()), strict=True):
        one, other = unpack(view.algebras, few), unpack(view.algebras, many)
        for name in (
            "orders",
            "large",
            "cents",
            "big",
            "money",
            "few",
            "spread",
            "smallest",
            "largest",
            "first",
            "last",
        ):
            assert view.algebras[name].present(one[name]) == view.algebras[name].present(other[name]), name


class Grown(NamedTuple):
    shop: Shop
    first: Manifest
    second: Manifest


@pytest.fixture(scope="module")
def grown(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Grown:
    """Two runs, of which the second goes on with events of other days."""
    shop = Shop(spark, tmp_path_factory.mktemp("grown"))
    shop.archive(made(shop, 200, 4))
    first = shop.run()
    shop.archive(later(made(shop, 100, 5), 3))
    return Grown(shop, first, shop.run())


def test_only_changed_days_are_rewritten(grown: Grown) -> None:
    before, after = ({file.path for file in run.view("sales").files} for run in (grown.first, grown.second))
    assert before < after
    third = grown.shop.run()
    assert third.view("sales").files == grown.second.view("sales").files, "no news"
    assert third.run > grown.second.run
    grown.shop.check()


def test_the_index_continues_from_file_to_file_and_is_rebuilt_where_it_must(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file a run, all of them as one when they are too many; all from the Parquet files where one cannot be read.

    Spark's workers build it, as if there were many groups.
    """
    monkeypatch.setattr("batch_layer.view_computation.WORTH_WORKERS", 0)
    monkeypatch.setattr("batch_layer.view_computation.MAX_FILES", 2)
    names = []
    for number in range(4):
        shop.archive(later(made(shop, 30, 40 + number), number))
        names.append(shop.run().view("sales").index)
        shop.check()
    assert list(map(len, names)) == [1, 2, 1, 2]
    assert names[0] == names[1][:1]
    first, second = (shop.folder.indexes / name for name in names[3])
    second.write_bytes(b"")
    assert shop.run().view("sales").index == (names[3][0].replace("00000003", "00000005"),), "without news, too"
    shop.check()
    old = shop.folder.indexes / read_manifest(shop.folder, 5).view("sales").index[0]
    old.unlink()
    with lmdb.open(str(old), subdir=False, lock=False) as file, file.begin(write=True) as transaction:
        transaction.put(b"m", json.dumps({"format": 1, "days": ["2026-03-01"], "groups": 3}).encode())
    shop.archive(made(shop, 5, 45))
    last = shop.run()
    assert (last.kind, len(last.view("sales").index)) == ("continued", 1)
    assert first.exists(), "runs before are kept"
    shop.check()


def test_a_problem_of_a_worker_is_reported_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    def refuse(task: int) -> int:
        if task == 3:
            raise BatchError("1 groups stand twice")
        return task * 2

    each = SparkWorkers(spark.sparkContext)
    assert each(refuse, [1, 2]) == [2, 4]
    with pytest.raises(BatchError, match=r"^1 groups stand twice$"):
        each(refuse, [1, 2, 3])


def test_events_that_no_view_looks_at_are_read_all_the_same(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark may see on the way that nothing can come out and leave the job out, with what was to be counted in it.

    Where it does not look on the way, the view `nothing` above shows the same.
    """
    path = Path(str(shop.settings.views_dir)) / "shop.py"
    by_spark(monkeypatch)
    path.write_text(path.read_text().replace("source=shop, keys", """source=shop, where="item = 'none'", keys"""))
    shop.source, shop.views = shop.declared()
    shop.spark.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        for seed in (20, 21):
            shop.archive(made(shop, 30, seed))
            shop.run()
            shop.check()
    finally:
        shop.spark.conf.set("spark.sql.adaptive.enabled", "false")


def test_a_run_does_not_go_on_from_what_is_no_longer_so(shop: Shop) -> None:
    """Hashes of ids that are gone would count duplicates twice; after a repair old numbers may be wrong."""
    first = made(shop, 60, 22)
    shop.archive(first)
    shop.run()
    for lost in sorted((shop.folder.ids / "00000001" / "hashes").glob("*.parquet"))[:1]:
        lost.unlink()
    shop.archive(first[:30])
    assert shop.run().kind == "full"
    shop.check()
    repair = Proof(Kind.REPAIR, "shop", "topic-id", start=shop.cut, end=shop.cut)
    with commit_lock(shop.table):
        append(shop.spark, shop.table, None, repair)
    shop.archive(made(shop, 10, 23))
    assert shop.run().kind == "full"
    shop.check()


def test_keys_of_an_older_version_that_are_too_long_now_are_recomputed_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run computes such a view from all events; a view whose keys are short goes on."""
    shop.archive(made(shop, 120, 31))
    with monkeypatch.context() as older:
        older.setattr("views.view.shortened", lambda expression: expression)
        older.setattr("batch_layer.view_computation.MAX_BYTES", 0)
        shop.run()
    with closing(shop.open_index("sales")) as before:
        assert before.has_long_keys()
    shop.archive(made(shop, 10, 32))
    data = shop.run().view("sales")
    assert (data.kind, data.max_key_bytes) == ("full", 1_024)
    shop.check()
    with closing(shop.open_index("sales")) as after:
        assert not after.has_long_keys()
    shop.archive(made(shop, 10, 33))
    assert shop.run().view("sales").kind == "continued"
    shop.check()


@pytest.mark.parametrize("is_older", [False, True])
def test_an_index_of_another_format_is_rebuilt_by_the_next_ordinary_run(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, is_older: bool
) -> None:
    """Also where 0.1.0 made it, which did not note that its keys are short: an upgrade needs no full run."""
    shop.archive(made(shop, 60, 34))
    with monkeypatch.context() as other:
        other.setattr("batch_layer.index.files.FORMAT", 1)
        other.setattr("batch_layer.index.files.READABLE", frozenset({1}))
        if is_older:
            other.setattr("batch_layer.view_computation.MAX_BYTES", 0)
        shop.run()
    with pytest.raises(BatchError, match="has format 1"):
        shop.open_index("sales")
    shop.archive(made(shop, 10, 35))
    again = shop.run()
    assert {data.max_key_bytes for data in again.views} == {1_024}
    shop.open_index("sales").close()
    shop.check()


def test_a_copy_in_a_lower_partition_that_says_something_else_is_taken(shop: Shop) -> None:
    """Of all duplicates the lowest position counts, whichever came first: a continued run then computes everything."""
    (record,) = made(shop, 1, 7, duplicates=0)
    event = record.event
    value = json.dumps({"event_id": event.event_id, "event_time": "2026-03-01T23:00:00Z", "item": "a", "cents": 1})
    other = json.dumps({"event_id": event.event_id, "event_time": "2026-03-01T23:00:00Z", "item": "b", "cents": 2})
    at = datetime(2026, 3, 1, 23, tzinfo=UTC)
    shop.archive(
        [SampleRecord(value.encode(), Event(2, 0, event.event_id, at, json.loads(value) | {"event_time": at}))]
    )
    shop.run()
    shop.archive(
        [SampleRecord(other.encode(), Event(0, 0, event.event_id, at, json.loads(other) | {"event_time": at}))]
    )
    assert shop.run().kind == "full"
    shop.check()
    assert {group[1] for group in shop.answers("sales")} == {("b",)}


def test_few_events_and_many_are_searched_for_duplicates_alike(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process or by Spark: duplicates among new events, and of earlier ones, at lower positions too."""
    first = made(shop, 60, 30, duplicates=0.2)
    shop.archive(first, poison=5)
    middle = dict(shop.cut)
    moved = [
        SampleRecord(each.value, replace(each.event, partition=(each.event.partition + 1) % 3)) for each in first[:20]
    ]
    shop.archive([*moved, *first[15:30], *made(shop, 20, 31, duplicates=0.2)], poison=2)
    ids, found = shop.folder.ids, {}
    for run, max_events in ((10, 0), (20, duplicates_in_memory.MAX_EVENTS)):
        monkeypatch.setattr(duplicates_in_memory, "MAX_EVENTS", max_events)
        one = duplicates.find_duplicates(shop.spark, shop.table, shop.source, {}, middle, ids, run)
        known = (f"{run:08}",), one.records - one.invalid
        two = duplicates.find_duplicates(shop.spark, shop.table, shop.source, middle, shop.cut, ids, run + 1, *known)
        lost = duplicates.find_duplicates(
            shop.spark, shop.table, shop.source, middle, shop.cut, ids, run + 2, known[0], 7
        )
        found[run] = [
            (
                each.records, each.invalid, each.duplicates, each.why_all,
                sorted(each.where.collect()) if each.where is not None else None,
                sorted(shop.spark.read.parquet(str(ids / f"{run + number:08}" / "hashes")).collect()),
            )
            for number, each in enumerate((one, two, lost))
        ]  # fmt: skip
    assert found[10] == found[20]
    one, two, lost = found[10]
    assert one[2] > 0
    assert two[2] > 20
    assert "lower position" in two[3]
    assert "7" in lost[3]


def test_hashes_of_many_continued_runs_lie_in_few_folders_and_every_copy_is_found(shop: Shop) -> None:
    """Each run finds a copy of an event of every one before, also where hashes were merged that had been merged."""
    check_many_continued_runs(shop)


@pytest.mark.soak  # the gate compares both ways over two runs
def test_hashes_of_many_continued_runs_are_searched_by_spark_alike(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates_in_memory, "MAX_EVENTS", 0)
    check_many_continued_runs(shop)


def check_many_continued_runs(shop: Shop) -> None:
    most, rounds, ends = 2, [made(shop, 2, seed, duplicates=0) for seed in range(100, 106)], [0]
    for run, fresh in enumerate(rounds):
        ends.append(ends[-1] + len(fresh) + run)
    shop.archive([each for run, fresh in enumerate(rounds) for each in (*fresh, *(one for one, _ in rounds[:run]))])
    cuts = [{event.partition: event.offset + 1 for event in shop.events[:end]} for end in ends]
    ids, names, total = shop.folder.ids, (), 0
    for run, (start, end) in enumerate(itertools.pairwise(cuts), start=1):
        found = duplicates.find_duplicates(
            shop.spark, shop.table, shop.source, start, end, ids, run, names, ends[run - 1]
        )
        assert (found.records, found.duplicates, found.why_all) == (ends[run] - ends[run - 1], run - 1, "")
        names, total = (*names, f"{run:08}"), total + found.duplicates
        if len(names) > most:
            names = (duplicates.merge_ids(shop.spark, ids, names, f"{run:08}-merged", ends[run], total),)
    assert names == ("00000005-merged", "00000006")
    everywhere = duplicates.all_duplicates(shop.spark, ids, names)
    assert everywhere is not None
    assert everywhere.distinct().count() == total == len(shop.events) - len(in_memory.counted(shop.events))


def test_a_new_and_a_changed_view_are_computed_over_everything(shop: Shop) -> None:
    shop.archive(made(shop, 200, 8))
    first = shop.run()
    path = Path(str(shop.settings.views_dir)) / "shop.py"
    text = path.read_text().replace('"cents": Sum("cents")', '"cents": Sum("cents + 1")')
    path.write_text(text + "\nmore = View('more', shop, {'n': Count('item')})\n")
    shop.source, shop.views = shop.declared()
    shop.archive(made(shop, 100, 9))
    second = shop.run()
    assert {view.name: view.kind for view in second.views} == {"sales": "full", "more": "full"}
    assert first.view("sales").hash != second.view("sales").hash
    shop.check()
    third = shop.run()
    assert {view.kind for view in third.views} == {"continued"}
    shop.check()


def test_run_over_its_deadline_fails_and_the_next_one_is_right(shop: Shop) -> None:
    shop.archive(made(shop, 100, 10))
    shop.run()
    shop.archive(made(shop, 60, 11))
    unlimited = shop.settings
    shop.settings = unlimited.model_copy(update={"batch_deadline_s": 0.05})
    with pytest.raises(RunTimedOut, match=r"source 'shop' did not end within 0.05 s \(batch_deadline_s\)"):
        shop.run()
    wait_until("the jobs to be cancelled", lambda: all(each.name != "cancel" for each in threading.enumerate()))
    assert publish_log.served(shop.folder).run == 1
    shop.settings = unlimited
    assert publish_log.served(shop.folder).run < shop.run().run
    shop.check()


def test_a_killed_run_leaves_nothing_that_a_reader_sees(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the flip readers stay on the run before, after it they have the new one; the next run is right.

    Each run also merges the hashes of ids, and a crash between flip and Delta tables is followed by the hardest prune.
    """
    monkeypatch.setattr(duplicates, "MAX_FOLDERS", 1)
    shop.archive(made(shop, 100, 10))
    shop.run()
    before = list(shop.events)
    shop.archive(made(shop, 60, 11))
    for step in STEPS:
        with pytest.raises(Killed):
            shop.run(failpoint=dying_at(step))
        assert rows_of_delta(shop, "sales") == len(shop.answers("sales", 1)), "other engines are on the run before"
        if step != "run.after_publish":
            assert publish_log.served(shop.folder).run == 1, step
            everything, shop.events = shop.events, before
            shop.check()
            shop.events = everything
    published = publish_log.served(shop.folder).run
    assert published == 1 + len(STEPS)
    shop.check()
    assert prune(shop.folder, 1).kept == (1, published)
    assert rows_of_delta(shop, "sales") == len(shop.answers("sales", 1)), "they still have their files"
    shop.archive(made(shop, 30, 11))  # duplicates of what the previous run has counted
    last = shop.run()
    assert (last.run, last.ids) == (published + 1, (f"{published + 1:08}-merged",))
    assert last.duplicates == len(shop.events) - len(in_memory.counted(shop.events)) >= 30
    shop.check()
    assert rows_of_delta(shop, "sales") == len(shop.answers("sales"))


def rows_of_delta(shop: Shop, view: str) -> int:
    table = shop.folder.table(view, shop.views[view].hash)
    return len(shop.spark.read.format("delta").load(str(table)).collect())  # a count would not look at the files


DEFAULTS = {"delta.checkpointInterval": "20", "delta.dataSkippingNumIndexedCols": "8"}
"""The properties of tables that an older version made."""


def grow_old(spark: SparkSession, table: Path, days: int) -> None:
    """Let a table's log be of some days ago, and Delta clean it up after a checkpoint, as it does in use."""
    then = datetime.now(UTC) - timedelta(days=days)
    for checksum in (table / "_delta_log").glob(".*.json.crc"):  # of what commits said before
        checksum.unlink()
    for file in (table / "_delta_log").iterdir():
        if file.suffix == ".json" and file.stem.isdecimal():
            actions = [json.loads(line) for line in file.read_text().splitlines()]
            for action in actions:
                if "commitInfo" in action:
                    action["commitInfo"]["timestamp"] = int(then.timestamp() * 1000)
            file.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
        os.utime(file, (then.timestamp(), then.timestamp()))
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr]
    log.clearCache()
    log.forTable(spark._jsparkSession, str(table)).checkpoint()
    log.clearCache()


def properties_of(spark: SparkSession, table: Path) -> dict[str, str]:
    (row,) = spark.sql(f"describe detail delta.`{table}`").collect()
    return dict(row["properties"])


def test_runs_go_on_when_the_log_of_a_table_has_lost_its_beginning(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of an older version is 40 days old: Delta has removed version 0. Then its whole log is lost, as after the
    defect that took that for a crash; then its newest commit is emptied, as after a power cut.
    """
    shop.archive(made(shop, 40, 50))
    with monkeypatch.context() as older:
        older.setattr("batch_layer.delta_commits.PROPERTIES", DEFAULTS)
        shop.run()
    table = shop.folder.table("sales", shop.views["sales"].hash)
    log = table / "_delta_log"
    grow_old(shop.spark, table, 40)
    kept = {file.name for file in log.iterdir()}
    assert f"{0:020}.json" not in kept
    shop.archive(later(made(shop, 30, 51), 1))
    shop.run()
    assert kept <= {file.name for file in log.iterdir()}, "a log that holds a table stays"
    assert properties_of(shop.spark, table).items() >= PROPERTIES.items(), "healed by its next run"
    check_other_engines(shop)
    shutil.rmtree(log)
    shop.run()  # without news: nothing is written, and the log is made all the same
    check_other_engines(shop)
    shutil.rmtree(log)
    shop.archive(later(made(shop, 30, 52), 2))
    shop.run()
    check_other_engines(shop)
    max(log.glob("*.json")).write_bytes(b"")
    shop.archive(later(made(shop, 30, 53), 3))
    shop.run()
    check_other_engines(shop)
    assert exposed_run(table) == publish_log.last(shop.folder).run


def check_other_engines(shop: Shop) -> None:
    from deltalake import DeltaTable

    shop.check()
    table = shop.folder.table("sales", shop.views["sales"].hash)
    rows = len(shop.answers("sales"))
    assert (rows_of_delta(shop, "sales"), DeltaTable(str(table)).to_pyarrow_dataset().count_rows()) == (rows, rows)


def test_log_of_a_table_gets_a_checkpoint_of_delta_now_and_then(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our commits are plain files, which Delta reads, sums up and cleans up after."""
    monkeypatch.setitem(PROPERTIES, "delta.checkpointInterval", "2")
    shop.archive(made(shop, 30, 55))
    shop.run()
    table = shop.folder.table("sales", shop.views["sales"].hash)
    assert read_log(table).checkpoint is None
    shop.archive(later(made(shop, 20, 56), 1))
    shop.run()
    assert (read_log(table).version, read_log(table).checkpoint) == (2, 2)
    check_other_engines(shop)
    shop.archive(later(made(shop, 20, 57), 1))
    shop.run()
    assert (read_log(table).version, read_log(table).checkpoint) == (3, 2)
    check_other_engines(shop)


def test_tables_that_cannot_follow_a_run_do_not_undo_it(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is published, the failure is reported and noted; a run that succeeds forgets it."""

    def refuse(*_: Any) -> None:
        raise RuntimeError("no space left")

    shop.archive(made(shop, 20, 54))
    for count in (1, 2):
        with monkeypatch.context() as full:
            full.setattr("batch_layer.run.expose", refuse)
            with pytest.raises(TablesBehind, match=r"is published, .*: no space left"):
                shop.run()
        shop.check()
        failures = read_failures(shop.folder)
        assert failures is not None
        assert (failures.count, "no space left" in failures.reason) == (count, True)
        assert publish_log.served(shop.folder).run == count
    shop.run()
    assert read_failures(shop.folder) is None
    check_other_engines(shop)


def test_two_runs_at_once_never_both_publish(shop: Shop) -> None:
    """The lease turns the second away; without a lease the publish log does."""
    shop.archive(made(shop, 50, 12))
    with lease(shop.folder, "a test"), pytest.raises(LeaseHeld):
        shop.run()
    shop.run()
    newest = publish_log.last(shop.folder)

    def overtake(name: str) -> None:
        if name == "run.before_publish":
            number = publish_log.next_run(shop.folder)
            publish_log.append(shop.folder, publish_log.Entry(number, newest.cut, newest.catalog, newest.at))

    with pytest.raises(RunRefused):
        shop.run(failpoint=overtake)


@pytest.fixture(scope="module")
def unpublished(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Events, and no run: for those that must fail."""
    shop = Shop(spark, tmp_path_factory.mktemp("unpublished"))
    shop.archive(made(shop, 50, 13))
    return shop


@pytest.mark.parametrize("damage", ["lost row", "no row", "changed state"])
def test_files_that_do_not_hold_what_was_computed_are_not_published(
    unpublished: Shop, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_spark(monkeypatch)
    write: Callable[..., Any] = recompute.write_files

    def spoil(spark: SparkSession, table: Path, rows: Any, keys: Any) -> Any:
        if "item" not in rows.columns:
            return write(spark, table, rows, keys)
        kept = {"lost row": 3, "no row": 0}.get(damage, 10**6)
        more = "orders + 1" if damage == "changed state" else "orders"
        spoilt = rows.limit(kept).selectExpr("* except(orders)", f"{more} as orders")
        return write(spark, table, spoilt.select(*rows.columns), keys)

    monkeypatch.setattr(recompute, "write_files", spoil)
    with pytest.raises(BatchError, match="Nothing was published"):
        unpublished.run()
    assert publish_log.served(unpublished.folder).run == 0


@pytest.mark.parametrize("damage", ["lost row", "no row", "changed state"])
def test_files_of_few_events_that_do_not_hold_them_are_not_published(
    unpublished: Shop, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write: Callable[..., Any] = few_events.write_day

    def spoil(table: Path, day: str, rows: Any, keys: list[str]) -> Any:
        if damage == "changed state":
            at = rows.schema.get_field_index("orders")
            more = [each + 1 for each in rows["orders"].to_pylist()]
            return write(table, day, rows.set_column(at, rows.schema.field(at), [more]), keys)
        return write(table, day, rows.slice(0, len(rows) - 1 if damage == "lost row" else 0), keys)

    monkeypatch.setattr(few_events, "write_day", spoil)
    with pytest.raises(BatchError, match="Nothing was published"):
        unpublished.run()
    assert publish_log.served(unpublished.folder).run == 0


def test_a_master_that_holds_less_than_it_promises_is_not_computed(
    unpublished: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from batch_layer import master_snapshot

    known: Callable[..., Any] = master_snapshot.below
    monkeypatch.setattr(master_snapshot, "below", lambda history, cut: replace(known(history, cut), rows=99))
    with pytest.raises(BatchError, match="its commits promise 99"):
        unpublished.run()
    assert publish_log.served(unpublished.folder).run == 0


def test_a_changed_source_and_one_that_the_archiver_refuses_are_named_at_once(shop: Shop) -> None:
    """Without Spark and without waiting, in a few words."""
    shop.archive(made(shop, 20, 15))
    path = Path(str(shop.settings.views_dir)) / "shop.py"
    path.write_text(path.read_text().replace("cents int", "cents bigint"))
    with pytest.raises(SourceChanged, match="'cents' is int in the table and bigint in the declaration"):
        run_batch(shop.settings, "shop", spark=None)
    status = {"at": time.time(), "error": "", "sources": {"shop": {"refused": "The topic was made again."}}}
    status_file = status_path(shop.settings, "archiver")
    status_file.parent.mkdir()
    status_file.write_text(json.dumps(status))
    snapshot = MasterSnapshot("shop", shop.table, lambda: upstream.refusal(shop.settings, "shop"))
    snapshot.check()
    ahead = Opening("open", {partition: offset + 1 for partition, offset in shop.cut.items()})
    with pytest.raises(BatchError, match=r"does not archive it, .* The topic was made again"):
        snapshot.wait_for(ahead, 300, quiet)
    assert snapshot.wait_for(Opening("open", shop.cut), 300, quiet) == shop.cut, "what is there is enough"


def test_another_version_of_the_source_is_computed_from_all_records(shop: Shop) -> None:
    """Without a speed layer it is an ordinary run, which goes on from nothing; also where only the version is new."""
    shop.archive(made(shop, 40, 16), poison=3)
    shop.run()
    path = Path(str(shop.settings.views_dir)) / "shop.py"
    path.write_text(path.read_text().replace("cents int", "cents bigint").replace('"shop",', '"shop", version=2,'))
    _, shop.views = shop.declared()
    second = shop.run()
    assert (second.base_run, {data.kind for data in second.views}) == (None, {"full"})
    shop.check()
    shop.archive(made(shop, 20, 17))
    third = shop.run()
    assert third.base_run == second.run
    shop.check()


def test_an_empty_master_and_an_older_backup_of_it_are_named(shop: Shop) -> None:
    with pytest.raises(NothingArchived, match="holds nothing yet"):
        shop.run()
    assert read_failures(shop.folder) is None, "nothing has failed"

    def has_records() -> bool:
        """Kafka has the first events, and the archiver commits them while a run waits."""
        shop.archive(made(shop, 20, 14))
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("batch_layer.upstream.has_records", lambda *_: has_records())
        assert shop.run().cut == shop.cut
    log = publish_log.last(shop.folder)
    number = publish_log.next_run(shop.folder)
    ahead = {p: offset + 5 for p, offset in shop.cut.items()}
    publish_log.append(shop.folder, publish_log.Entry(number, ahead, log.catalog, log.at))
    with pytest.raises(BatchError, match="older backup"):
        shop.run()


def test_other_engines_read_the_batch_views(grown: Grown) -> None:
    """`deltalake`, and DuckDB over its Arrow dataset, see exactly the published run with plain numbers in it."""
    import duckdb
    from deltalake import DeltaTable

    shop = grown.shop
    path = shop.folder.table("sales", shop.views["sales"].hash)
    sales = DeltaTable(str(path)).to_pyarrow_dataset()  # noqa: F841  # DuckDB finds it by its name
    found = duckdb.sql(
        "select item, sum(orders), sum(cents), sum(money), max(users) from sales group by item"
    ).fetchall()
    expected: dict[Any, list[Any]] = {}
    for (_, (item,)), answers in shop.expected("sales").items():
        sums = expected.setdefault(item, [0, 0, 0, 0])
        sums[0] += answers["orders"]
        sums[1] += answers["cents"]
        sums[2] += round(float(answers["money"]) * 100)
        sums[3] = max(sums[3], answers["users"])
    assert {row[0]: [row[1], row[2], round(row[3] * 100), row[4]] for row in found} == expected
