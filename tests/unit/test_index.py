"""The read index: tiles of every level are the merged groups, over several files, with keys of any kind and length."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_layer.index import Index, Level, Tile, builder, files, open_index, reader, scratch, sort, sums
from batch_layer.index import tiles as tiling
from batch_layer.index.builder import build
from batch_layer.index.files import seal_file
from batch_layer.index.layout import cover, levels_of
from hand_off.errors import BatchError
from tests.conftest import assert_same
from tests.tiers import times
from views import in_memory, states
from views.aggregates import Average, Count, Distinct, First, Histogram, Last, Max, Min, Quantiles, Sum, TopK
from views.declarations import ALL_EXAMPLES, load_declarations
from views.derived import Ratio
from views.in_memory import Event, Group
from views.keys import pack_key, pack_prefix, unpack_key
from views.sample_events import generate
from views.source import Source
from views.view import View

FIRST = datetime(1970, 1, 1, tzinfo=UTC)
DAY_S = 86_400
EVER = (-(2**40), 2**40)
SHOP = Source(
    "shop",
    fields="event_id string, event_time timestamp, user_id string, item string, cents int, big bigint, "
    "price decimal(10,2), ms double, born date, paid boolean",
)
EVERYTHING = View(
    "everything",
    source=SHOP,
    grain="15m",
    keys={"item": "item", "born": "born", "paid": "paid", "cents": "cents"},
    answers={
        "orders": Count(),
        "large": Count(where="cents >= 99"),
        "share": Ratio("large", "orders"),
        "cents_sum": Sum("cents"),
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
TOTALS = View("totals", source=SHOP, answers={"orders": Count(), "ms": Quantiles("ms")})
DAILY = View("daily", source=SHOP, grain="1d", answers={"orders": Count(), "users": Distinct("user_id")})
BY_ITEM = View("by_item", source=SHOP, keys={"item": "item"}, answers={"orders": Count(), "cents": Sum("cents")})
VIEWS = {**load_declarations(examples=ALL_EXAMPLES).views, **{v.name: v for v in (EVERYTHING, TOTALS, DAILY, BY_ITEM)}}
OFFSETS = (-59, -31, -1, 0, 1, 2, 27, 31)
"""Days by which events are moved: within a month, over its end, and into others."""


# ---- batch views without Spark ------------------------------------------------------


def write(path: Path, view: View, groups: dict[Group, bytes]) -> Path:
    """A Parquet file of a batch view."""
    keys = list(zip(*(key for _, key in groups), strict=True)) or [()] * len(view.keys)
    buckets = pa.array([micros for micros, _ in groups], pa.timestamp("us", "UTC"))
    columns = {"bucket": buckets, **dict(zip(view.keys, map(pa.array, keys), strict=True))}
    pq.write_table(pa.table({**columns, "state": pa.array(groups.values(), pa.binary())}), path)
    return path


def day_text(micros: int) -> str:
    return (FIRST + timedelta(microseconds=micros)).date().isoformat()


def period_of(level: Level, bucket: int) -> int:
    """Where the period begins that a bucket is in, in seconds."""
    at = FIRST + timedelta(seconds=bucket)
    if level is Level.MONTH:
        at = at.replace(day=1)
    if level is not Level.GRAIN:
        at = at.replace(hour=0, minute=0, second=0)
    return int(at.timestamp())


@dataclass
class Place:
    """A view with its runs: each goes on from the one before, and writes the days anew that it touches."""

    folder: Path
    view: View
    events: list[Event] = field(default_factory=list)
    files: dict[str, list[Path]] = field(default_factory=dict)
    index: tuple[Path, ...] = ()
    runs: int = 0
    folded: tuple[int, dict[Group, dict[str, Any]]] = field(default=(0, {}))

    def run(self, events: Iterable[Event], *, is_whole: bool = False, files_a_day: int = 2) -> None:
        new = list(events)
        self.events += new
        self.runs += 1
        touched = {day_text(bucket) for bucket, _ in in_memory.fold(self.view, new)}
        found = {group: states.pack(self.view.algebras, state) for group, state in self.groups().items()}
        days = {}
        for day in touched:
            of_day = [(group, state) for group, state in found.items() if day_text(group[0]) == day]
            parts = [dict(of_day[part::files_a_day]) for part in range(files_a_day)]
            name = f"{self.runs}-{day}"
            days[day] = [write(self.folder / f"{name}-{n}", self.view, part) for n, part in enumerate(parts) if part]
        if not days:
            return
        path = self.folder / "index" / f"{self.runs}.mdb"
        with closing(open_index(self.index)) as before:
            new_groups = build(path, self.view, days, before if self.index else None, is_whole=is_whole)
        assert new_groups == sum(day_text(bucket) in touched for bucket, _ in found)
        self.index = (path,) if is_whole else (*self.index, path)

    def groups(self) -> dict[Group, dict[str, Any]]:
        if self.folded[0] != len(self.events):
            self.folded = len(self.events), in_memory.fold(self.view, self.events)
        return self.folded[1]

    def merged(self, level: Level, *, is_total: bool = False) -> dict[tuple[int, bytes], Any]:
        """What the tiles of a level must say, from the groups."""
        found: dict[tuple[int, bytes], Any] = {}
        for (micros, key), state in self.groups().items():
            group = period_of(level, micros // 1_000_000), b"" if is_total else pack_key(key)
            found[group] = states.merge(self.view.algebras, found[group], state) if group in found else state
        return {group: self.view.present(state) for group, state in found.items()}

    def presented(self, tiles: Iterable[Tile]) -> dict[tuple[int, bytes], Any]:
        found = {}
        for tile in tiles:
            assert (tile.bucket, tile.key) not in found, "a tile comes twice"
            found[(tile.bucket, tile.key)] = self.view.present(states.unpack(self.view.algebras, tile.state))
        return found

    def check(self, start: int, end: int) -> None:
        """Everything that the index can be asked, over all time and over a stretch of it."""
        with closing(open_index(self.index)) as index:
            assert index.groups == len(self.groups())
            for level in index.levels:
                tiles, totals = self.merged(level), self.merged(level, is_total=True)
                keys = sorted({key for _, key in tiles})
                for first, last in (EVER, (start, end)):
                    here = {group: tile for group, tile in tiles.items() if first <= group[0] < last}
                    assert_same(self.presented(index.of_prefix(level, b"", first, last)), here)
                    total = {group: tile for group, tile in totals.items() if first <= group[0] < last}
                    assert_same(self.presented(index.totals(level, first, last)), total)
                    for key in keys[:5]:
                        found = list(index.of_key(level, key, first, last))
                        assert found == sorted(found)
                        expected = {group: tile for group, tile in here.items() if group[1] == key}
                        assert_same(self.presented(found), expected)
                        assert_same(self.presented(index.of_prefix(level, key, first, last)), expected)
                    check_buckets(index, level, first, last)
            for first, last in (EVER, (start, end), (start, start + 1)):
                self.check_sums(index, first, last)

    def check_sums(self, index: Index, start: int, end: int) -> None:
        for name, answer in self.view.answers.items():
            expected: dict[bytes, int] = {}
            for (micros, key), state in self.groups().items():
                if start <= micros // 1_000_000 < end:
                    packed = pack_key(key)
                    value = state[name] if isinstance(state.get(name), int) else 0
                    expected[packed] = expected.get(packed, 0) + value
            found = index.sums(name, start, end)
            algebra = self.view.algebras.get(name)
            if not isinstance(answer, Count | Sum) or algebra is None or not algebra.is_whole:
                assert found is None
                continue
            if found is None:
                assert not self.groups() or max(abs(state[name]) for state in self.groups().values()) > 2**50, name
                continue
            assert found.values.dtype == np.int64
            assert {found.key(place): int(value) for place, value in enumerate(found.values)} == expected
            for key in {*expected, pack_key(("nowhere",) * len(self.view.keys))}:
                place = found.place(key)
                assert (place is None) == (key not in expected)
                assert place is None or found.key(place) == key


def check_buckets(index: Index, level: Level, start: int, end: int) -> None:
    """Tiles of all keys together come by bucket, one for each bucket that has groups."""
    buckets = [tile.bucket for tile in index.totals(level, start, end)]
    assert buckets == sorted({tile.bucket for tile in index.of_prefix(level, b"", start, end)})


def made(view: View, count: int, seed: int) -> list[Event]:
    """Events of several days and months, each with an id of its own."""
    records = generate(view.source, count, seed, views=[view], duplicates=0)
    return [
        Event(event.partition, event.offset, event.event_id, event.event_time + timedelta(days=days), event.fields)
        for place, event in enumerate(record.event for record in records)
        for days in [OFFSETS[place % len(OFFSETS)]]
    ]


@contextmanager
def place_of(view: View) -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as folder:
        yield Place(Path(folder), view)


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were so many groups that nothing fits into memory, into a block or into one part."""
    for module, name, value in (
        (scratch, "BATCH_ROWS", 9),
        (sort, "READ_ROWS", 9), (sort, "CHUNK_BYTES", 1_200), (builder, "ROWS_TOGETHER", 12),
        (builder, "MONTHS_ROWS", 30), (builder, "MAX_KNOWN", 2),
        (tiling, "TOTALS_BYTES", 700), (tiling, "MERGED_AT_ONCE", 2), (builder, "BLOCK_ROWS", 4),
        (builder, "PART_TILES", 100), (builder, "WRITTEN_AT_ONCE", 7), (reader, "LOOK_UP", 0),
    ):  # fmt: skip
        assert hasattr(module, name)
        monkeypatch.setattr(module, name, value)


# ---- laws --------------------------------------------------------------------------


def moments() -> st.SearchStrategy[int]:
    """Around where the events are: on boundaries of days and hours, and beside them."""
    first = int(datetime(2025, 12, 30, tzinfo=UTC).timestamp())
    return st.builds(
        lambda days, seconds: first + days * DAY_S + seconds,
        st.integers(0, 100),
        st.sampled_from((0, 0, 1, 3599, 3600, 22 * 3600, 86_399)),
    )


@pytest.mark.parametrize("name", VIEWS)
@settings(max_examples=times(2, 20), deadline=None)
@given(seed=st.integers(0, 2**32), start=moments(), end=moments())
def test_tiles_of_every_level_are_the_merged_groups(name: str, seed: int, start: int, end: int) -> None:
    with place_of(VIEWS[name]) as place:
        place.run(made(VIEWS[name], 150, seed))
        place.check(start, end)


@pytest.mark.parametrize("name", ["page_latency", "service_errors", "signups", "everything", "totals", "daily"])
@settings(max_examples=times(2, 20), deadline=None)
@given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(0, 120), max_size=4), data=st.data())
def test_runs_that_go_on_say_the_same_as_one(name: str, seed: int, cuts: list[int], data: st.DataObject) -> None:
    """Late events touch some days of a month: its tile is made of these and of the days of the files before."""
    view = VIEWS[name]
    events = made(view, 120, seed)
    shuffled = data.draw(st.permutations(events))
    few_days = data.draw(st.booleans())
    with place_of(view) as place:
        ends = [0, *sorted(cuts), len(events)]
        for start, end in pairwise(ends):
            new = shuffled[start:end]
            if few_days and place.runs:
                new = [event for event in new if event.event_time.day % 2]
            place.run(new, is_whole=data.draw(st.booleans()) if place.index else False)
            place.check(data.draw(moments()), data.draw(moments()))


@pytest.mark.usefixtures("little_room")
@pytest.mark.parametrize("name", VIEWS)
def test_what_does_not_fit_into_memory_says_the_same(name: str) -> None:
    view = VIEWS[name]
    with place_of(view) as place:
        events = made(view, 200, 5)
        for number, start in enumerate(range(0, 200, 50)):
            place.run(events[start : start + 50], is_whole=number == 2)
            place.check(int(events[0].event_time.timestamp()) // 3600 * 3600, int(events[7].event_time.timestamp()))


@given(start=st.integers(-(10**10), 10**10), length=st.integers(0, 10**8), grain_s=st.sampled_from((5, 3600, 86_400)))
def test_a_stretch_is_covered_once_by_whole_tiles(start: int, length: int, grain_s: int) -> None:
    levels, end, at = levels_of(grain_s), start + length, start
    for level, first, last in cover(levels, start, end):
        assert (first, level in levels) == (at, True)
        assert last > first
        if level is not Level.GRAIN:
            assert (period_of(level, first), period_of(level, last)) == (first, last)
        at = last
    assert at == end


# ---- keys ----------------------------------------------------------------------


LONG = "x" * 470
KEYS = (
    st.none() | st.text("ax\x00\x01é", max_size=4) | st.sampled_from([LONG, LONG + "xxxx", LONG + "x" * 30, LONG * 4])
)


@settings(max_examples=times(10, 200), deadline=None)
@given(
    keys=st.sets(st.tuples(KEYS), min_size=1, max_size=12),
    prefix=st.sampled_from(["", "a", "a\x00", "x", LONG, LONG * 2]),
)
def test_keys_of_any_length_are_found_by_their_bytes(keys: set[tuple[str | None]], prefix: str) -> None:
    groups = {(hour * 3_600_000_000, key): state(BY_ITEM, len(key[0] or "") + hour) for key in keys for hour in (0, 30)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "1.mdb"
        days = {day: {g: s for g, s in groups.items() if day_text(g[0]) == day} for day in ("1970-01-01", "1970-01-02")}
        build(path, BY_ITEM, {day: [write(Path(folder) / day, BY_ITEM, of)] for day, of in days.items()})
        with closing(open_index([path])) as index:
            for level in Level:
                all_of_it = list(index.of_prefix(level, b"", *EVER))
                assert {unpack_key(tile.key) for tile in all_of_it} == keys
                packed = pack_prefix((), prefix)
                found = set(index.of_prefix(level, packed, *EVER))
                assert found == {tile for tile in all_of_it if tile.key.startswith(packed)}
                for tile in all_of_it:
                    assert tile in list(index.of_key(level, tile.key, tile.bucket, tile.bucket + 1))
            hours = {
                (tile.bucket, unpack_key(tile.key), tile.state) for tile in index.of_prefix(Level.GRAIN, b"", *EVER)
            }
            assert hours == {(micros // 1_000_000, key, state) for (micros, key), state in groups.items()}


def state(view: View, orders: int, cents: int = 0) -> bytes:
    return states.pack(view.algebras, {"orders": orders, "cents": cents})


def test_a_beginning_of_a_key_of_several_values_is_a_prefix(tmp_path: Path) -> None:
    view = View("v", SHOP, {"orders": Count()}, keys={"item": "item", "cents": "cents", "paid": "paid", "born": "born"})
    keys = [
        ("a", 1, True, date(2026, 1, 1)),
        ("a", -1, False, None),
        ("ab", 1, None, date(1960, 2, 2)),
        (None, 1, None, None),
    ]
    groups = {(0, key): states.pack(view.algebras, {"orders": number}) for number, key in enumerate(keys)}
    build(tmp_path / "1.mdb", view, {"1970-01-01": [write(tmp_path / "p", view, groups)]})
    with closing(open_index([tmp_path / "1.mdb"])) as index:
        for prefix, expected in (
            (pack_key(("a",)), {keys[0], keys[1]}), (pack_key(("a", 1)), {keys[0]}), (pack_key((None,)), {keys[3]}),
            (pack_prefix((), "a"), {*keys[:3]}), (pack_key(("b",)), set()), (pack_key(keys[2]), {keys[2]}),
        ):  # fmt: skip
            assert {unpack_key(tile.key) for tile in index.of_prefix(Level.GRAIN, prefix, 0, 1)} == expected


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00", "1969-12-31T23:00:00", "9999-12-31T23:00:00"])
def test_every_time_that_an_event_can_have_is_indexed(tmp_path: Path, moment: str) -> None:
    at = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    micros = (at - FIRST) // timedelta(microseconds=1)
    file = write(tmp_path / "p", BY_ITEM, {(micros, ("a",)): state(BY_ITEM, 7)})
    build(tmp_path / "1.mdb", BY_ITEM, {moment[:10]: [file]})
    with closing(open_index([tmp_path / "1.mdb"])) as index:
        for level in Level:
            (tile,) = index.of_key(level, pack_key(("a",)), *EVER)
            assert tile == (period_of(level, micros // 1_000_000), pack_key(("a",)), state(BY_ITEM, 7))
        found = index.sums("orders", *EVER)
        assert found is not None
        assert found.values.tolist() == [7]


# ---- sums ----------------------------------------------------------------------


HUGE = 2**63 - 1


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, -1], 0),
        ([127, 1], 128),
        ([-128, -1], -129),
        ([2**53, 1], 2**53 + 1),
        ([2**62 - 1, 2**62 - 1], 2**63 - 2),
        ([-(2**61), 2**61, 5], 5),
        ([HUGE], HUGE),
        ([2**62, 2**62], None),
        ([HUGE, 1], None),
        ([-HUGE - 1], None),
        ([HUGE + 1], None),
        ([10**30, -(10**30)], None),
    ],
)
def test_sums_are_exact_or_none(tmp_path: Path, values: list[int], expected: int | None) -> None:
    """One number an hour; a day later stands a small one, which can be asked for alone."""
    groups = {(hour * 3_600_000_000, ("a",)): state(BY_ITEM, 1, cents) for hour, cents in enumerate(values)}
    files = {"1970-01-01": [write(tmp_path / "1", BY_ITEM, groups)]}
    small = {(DAY_S * 1_000_000, (each,)): state(BY_ITEM, 1, 3) for each in ("a", "b")}
    build(tmp_path / "1.mdb", BY_ITEM, {**files, "1970-01-02": [write(tmp_path / "2", BY_ITEM, small)]})
    with closing(open_index([tmp_path / "1.mdb"])) as index:
        found = index.sums("cents", 0, DAY_S - 1)
        assert (None if found is None else found.values.tolist()) == (None if expected is None else [expected])
        later = index.sums("cents", DAY_S, 2 * DAY_S)
        assert later is not None
        assert sorted(later.values.tolist()) == [3, 3]
        counted = index.sums("orders", 0, DAY_S * 40)
        assert counted is not None
        assert sorted(counted.values.tolist()) == [1, len(values) + 1]


class Named:
    """Keys that are their own numbers."""

    def key_of(self, number: int) -> bytes:
        return b"%d" % number

    def number_of(self, key: bytes) -> int | None:
        return int(key)


NUMBERS = st.integers(-(2**40), 2**40) | st.integers(-200, 200)


@given(
    rows=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), NUMBERS), min_size=1, max_size=60),
    key_count=st.sampled_from([31, 10**6]),
    start=st.integers(-1, 6),
    end=st.integers(-1, 7),
)
def test_blocks_add_up_what_was_put_into_them(
    rows: list[tuple[int, int, int]], key_count: int, start: int, end: int
) -> None:
    """Few keys and many: for many there is no room made for each."""
    ids, begins, values = (np.array(column) for column in zip(*rows, strict=True))
    places, numbers = sums.parts_of(sums.Rows(ids.astype(np.uint32), begins.astype(np.uint32), [values]))
    chosen = sums.choose(places, numbers, start, end)
    assert chosen is not None
    found = sums.added(Named(), key_count, [chosen, chosen])
    expected: dict[bytes, int] = {}
    for number, begin, value in rows:
        if start <= begin < end:
            expected[b"%d" % number] = expected.get(b"%d" % number, 0) + 2 * value
    assert found is not None
    assert {found.key(place): value for place, value in enumerate(found.values.tolist())} == expected
    assert [found.place(key) for key in expected] == [
        [found.key(place) for place in range(len(expected))].index(key) for key in expected
    ]


# ---- memory ----------------------------------------------------------------------


@pytest.mark.parametrize("rows", [40, 400])
def test_what_is_in_memory_does_not_grow_with_the_day(
    tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups are sorted in parts, and totals set aside: ten times as many groups are ten times as many parts."""
    monkeypatch.setattr(sort, "CHUNK_BYTES", 1_500)
    monkeypatch.setattr(sort, "READ_ROWS", 5)
    monkeypatch.setattr(tiling, "TOTALS_BYTES", 100)
    monkeypatch.setattr(scratch, "BATCH_ROWS", 10)
    sizes = []
    in_order = sort._in_order

    def seen(given: Sequence[sort.DayFiles], table: pa.Table) -> Iterator[pa.RecordBatch]:
        sizes.append(table.nbytes)
        return in_order(given, table)

    monkeypatch.setattr(sort, "_in_order", seen)
    groups = {(row % 24 * 3_600_000_000, (f"{row * 37 % rows:06}",)): state(BY_ITEM, row) for row in range(rows)}
    files = sort.DayFiles(0, ("item",), (write(tmp_path / "p", BY_ITEM, groups),))
    task = tiling.DayTask(tiling.Shape.of(BY_ITEM), (files,), tmp_path)
    assert tiling.make_days(task).days[0].groups == rows
    assert max(sizes) < 3 * sort.CHUNK_BYTES
    assert sum(sizes) > rows * 20
    assert len(list(tmp_path.glob("0.totals?*"))) >= rows // 40


# ---- files -----------------------------------------------------------------------


def small_index(folder: Path, name: str = "1", *, hour: int = 0, before: Index | None = None) -> Path:
    """An index with one group."""
    group = {(hour * 3_600_000_000, (f"item {name}",)): state(BY_ITEM, int(name))}
    day = day_text(hour * 3_600_000_000)
    build(folder / f"{name}.mdb", BY_ITEM, {day: [write(folder / f"{name}.parquet", BY_ITEM, group)]}, before)
    return folder / f"{name}.mdb"


def all_states(index: Index) -> list[bytes]:
    return [tile.state for tile in index.of_prefix(Level.GRAIN, b"", *EVER)]


def test_a_group_that_stands_twice_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "1", BY_ITEM, {(0, ("a",)): state(BY_ITEM, 1)})
    with pytest.raises(BatchError, match="1 groups stand twice"):
        build(tmp_path / "i" / "1.mdb", BY_ITEM, {"1970-01-01": [file, file]})
    assert not (tmp_path / "i" / "1.mdb").exists()


def test_a_group_of_another_day_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "1", BY_ITEM, {(DAY_S * 1_000_000, ("a",)): state(BY_ITEM, 1)})
    with pytest.raises(BatchError, match="another day"):
        build(tmp_path / "1.mdb", BY_ITEM, {"1970-01-01": [file]})


def test_what_a_killed_builder_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "1.partial").write_bytes(b"junk" * 5000)
    (tmp_path / "1.scratch").mkdir()
    (tmp_path / "1.scratch" / "0.rows").write_bytes(b"junk")
    with closing(open_index([small_index(tmp_path)])) as index:
        assert all_states(index) == [state(BY_ITEM, 1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.mdb", "1.parquet"]


@pytest.mark.parametrize("content", [None, b"", b"not an index" * 1000])
def test_a_damaged_index_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "1.mdb"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BatchError, match=r"1\.mdb' cannot be read .* `tidemark batch run`"):
        open_index([path])


def test_an_index_that_was_cut_short_is_not_opened(tmp_path: Path) -> None:
    """A look behind its end would end the process that looks."""
    path = small_index(tmp_path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 4096)
    with pytest.raises(BatchError, match=r"cannot be read \(it was cut short"):
        open_index([path])


@pytest.mark.parametrize("part", [0.0, 0.2, 0.5, 0.8, 0.999])
def test_an_index_with_a_changed_byte_is_not_believed(tmp_path: Path, part: float) -> None:
    """LMDB follows what its pages say, and keeps no checksum of them."""
    path = small_index(tmp_path)
    content = bytearray(path.read_bytes())
    content[int(part * len(content))] ^= 0x01
    path.write_bytes(content)
    with pytest.raises(BatchError, match=r"1\.mdb' cannot be read .* `tidemark batch run`"):
        open_index([path])


def test_an_index_is_read_whole_once_and_nobody_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = small_index(tmp_path, "1"), small_index(tmp_path, "2")
    read, checksum = list[str](), files._checksum

    def spied(path: Path, size: int) -> bytes:
        read.append(path.name)
        if path == second:  # who opens and closes another file meanwhile does not wait
            other = threading.Thread(target=lambda: open_index([first]).close())
            other.start()
            other.join(20)
            assert not other.is_alive()
        return checksum(path, size)

    monkeypatch.setattr(files, "_checksum", spied)
    for path in (first, second, first, second):
        open_index([path]).close()
    assert read == ["1.mdb", "2.mdb"]
    second.write_bytes(second.read_bytes()[:-1] + b"?")
    with pytest.raises(BatchError, match="not those that were written"):
        open_index([second])
    assert read[2:] == ["2.mdb"]


def test_an_index_of_another_format_is_told_to_be_made_anew(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "1.mdb"), subdir=False, lock=False) as file, file.begin(write=True) as transaction:
        transaction.put(b"m", json.dumps({"format": 1, "days": ["2026-03-01"], "groups": 3}).encode())
    seal_file(tmp_path / "1.mdb")
    with pytest.raises(
        BatchError, match=r"has format 1; .* reads 2\. The next batch run rebuilds it: `tidemark batch run`"
    ):
        open_index([tmp_path / "1.mdb"])


def test_files_that_do_not_go_on_from_each_other_are_refused(tmp_path: Path) -> None:
    first = small_index(tmp_path, "1")
    with closing(open_index([first])) as before:
        second = small_index(tmp_path, "2", hour=24, before=before)
    with closing(open_index([first, second])) as both:
        assert (both.groups, both.key_count) == (2, 2)
    with pytest.raises(BatchError, match="goes on from 1 keys, not from 0"):
        open_index([second])


def test_no_files_are_an_index_without_groups() -> None:
    with closing(open_index([])) as index:
        assert (index.groups, index.levels, all_states(index), list(index.totals(Level.DAY, *EVER))) == (
            0,
            (Level.GRAIN,),
            [],
            [],
        )
        assert index.sums("orders", *EVER) is None


def test_two_indexes_share_a_file_and_each_is_closed_by_itself(tmp_path: Path) -> None:
    """The run after has the files of the run before: while readers move, both are open."""
    first = small_index(tmp_path, "1")
    with closing(open_index([first])) as before:
        second = small_index(tmp_path, "2", hour=24, before=before)
        after = open_index([first, second])
    assert sorted(all_states(after)) == [state(BY_ITEM, 1), state(BY_ITEM, 2)]
    after.close()
    after.close()
    with closing(open_index([first])) as again:
        assert all_states(again) == [state(BY_ITEM, 1)]


def test_an_index_is_closed_when_the_last_read_is_done(tmp_path: Path) -> None:
    path = small_index(tmp_path)
    index = open_index([path])
    under_way = index.of_prefix(Level.GRAIN, b"", *EVER)
    abandoned = index.of_prefix(Level.GRAIN, b"", *EVER)
    assert next(under_way).state == next(abandoned).state == state(BY_ITEM, 1)
    index.close()
    assert list(under_way) == []
    with pytest.raises(BatchError, match="was closed"):
        list(index.of_key(Level.DAY, b"", *EVER))
    with pytest.raises(lmdb.Error):  # still open: LMDB refuses to open it a second time
        lmdb.open(str(path), subdir=False, lock=False, readonly=True).close()
    del abandoned
    lmdb.open(str(path), subdir=False, lock=False, readonly=True).close()


@pytest.mark.process
def test_another_process_reads_it_at_the_same_time_without_spark(tmp_path: Path) -> None:
    path = small_index(tmp_path)
    program = f"""
import sys
from pathlib import Path
from batch_layer.index import Level, open_index
index = open_index([Path({str(path)!r})])
print([tile.state for tile in index.of_prefix(Level.DAY, b"", 0, 2**40)])
print([name for name in ("pyspark", "pyarrow") if name in sys.modules])
"""
    with closing(open_index([path])):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"{[state(BY_ITEM, 1)]}\n[]\n"


@pytest.mark.parametrize("name", VIEWS)
def test_what_a_worker_needs_to_know_of_a_view_can_be_sent_to_it(name: str) -> None:
    shape = tiling.Shape.of(VIEWS[name])
    assert pickle.loads(pickle.dumps(shape)).answers == shape.answers  # noqa: S301  # our own bytes
