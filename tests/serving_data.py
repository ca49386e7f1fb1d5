"""What tests of the serving layer share: runs written without Spark, speed states, and the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batch_layer.index import open_index
from batch_layer.index.builder import build
from hand_off import definitions, publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.bucket_totals import by_name, totals
from hand_off.change_log import MAX_ENTRIES, entry_of
from hand_off.manifests import DataFile, Manifest, ViewData, read_manifest, write_manifest
from hand_off.publish_log import Entry
from hand_off.ranks import numbers, ranked
from hand_off.speed_views import Group, MicroBatch, Outcome, SpeedViews, cut_text
from infra.settings import Settings, load_settings
from master_dataset.cut import Cut, is_below
from serving_layer.query.result import ResultRow
from serving_layer.readers.selection import Period
from views import in_memory
from views.aggregates import Average, Count, Distinct, Histogram, Last, Max, Min, Quantiles, Sum, TopK
from views.declarations import Declarations
from views.derived import Derived, Ratio
from views.in_memory import Event
from views.keys import pack_key
from views.sample_events import generate
from views.short_texts import MAX_BYTES
from views.source import Source
from views.states import merge, pack, unpack
from views.view import View

SHOP = Source(
    "shop",
    fields="""
        event_id string, event_time timestamp, item string, size int, gift boolean, on_day date, user_id string,
        cents int, price decimal(9,2), ms double
    """,
)
ANSWERS: dict[str, Any] = {
    "orders": Count(),
    "large": Count(where="cents >= 99"),
    "cents": Sum("cents"),
    "spent": Sum("price"),
    "users": Distinct("user_id"),
    "few": Distinct("user_id", exact=True, at_most=8),
    "ms": Quantiles("ms", at=(0.5, 0.9)),
    "median": Quantiles("ms", at=0.5),
    "often": TopK("user_id", k=3),
    "least": Min("price"),
    "latest": Max("event_time"),
    "last": Last("user_id"),
    "mean": Average("cents"),
    "spread": Histogram("ms", bounds=(1, 100)),
    "share": Ratio("large", "orders"),
    "many": Derived("orders > 2"),
}
SALES = View("sales", SHOP, ANSWERS, keys={"item": "item", "size": "size"}, grain="1h", where="cents is not null")
TOTALS = View("totals", SHOP, {"orders": Count(), "users": Distinct("user_id")}, grain="1d")
GIFTS = View(
    "gifts", SHOP, {"orders": Count(), "cents": Sum("cents")},
    keys={"gift": "gift", "on_day": "on_day"}, grain="15m",
)  # fmt: skip
VIEWS = (SALES, TOTALS, GIFTS)
FIRST = datetime(2025, 12, 28, tzinfo=UTC)
SPAN_DAYS = 70
MEETING = (0, 3, 4, 20, 35, 36, 61, SPAN_DAYS - 1)
"""Days on which many events are."""
ARROW = {"string": pa.string(), "bigint": pa.int64(), "boolean": pa.bool_(), "date": pa.date32()}
MICROS = 1_000_000
PackedGroup = tuple[int, tuple[Any, ...], bytes]
"""Bucket in microseconds, key and state."""


def events(count: int, seed: int, days: Sequence[int] = (*range(SPAN_DAYS), *MEETING * 8)) -> list[Event]:
    """Generated events on some days since FIRST, with duplicates and nulls; some share an hour, some a key."""
    chance = Random(seed)  # noqa: S311  # no secret
    moved: dict[str, datetime] = {}
    found = []
    for record in generate(SHOP, count, seed, views=VIEWS, duplicates=0.1):
        event = record.event
        day = timedelta(days=chance.choice(days))
        at = moved.setdefault(event.event_id, FIRST + day + (event.event_time - FIRST) % timedelta(days=1))
        found.append(replace(event, event_time=at, fields={**event.fields, SHOP.time_field: at}))
    return found


def end_of(of: Iterable[Event]) -> dict[int, int]:
    """The cut just after these events."""
    found: dict[int, int] = {}
    for event in of:
        found[event.partition] = max(found.get(event.partition, 0), event.offset + 1)
    return found


def below(of: Iterable[Event], cut: Cut) -> list[Event]:
    return [event for event in of if event.offset < cut.get(event.partition, 0)]


# ---- the oracle ----------------------------------------------------------------


def naive(
    view: View, of: Iterable[Event], window: Period, by: Sequence[str], keep: Callable[[dict[str, Any]], bool]
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The answers of each group of `by` in a window: every event looked at, nothing merged."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for event in in_memory.counted(of):
        row = {**event.fields, view.source.id_field: event.event_id, view.source.time_field: event.event_time}
        if not window.start <= event.event_time.timestamp() < window.end:
            continue
        if view.condition is not None and not view.condition.evaluate(row):
            continue
        key = {name: expression.evaluate(row) for name, expression in view.key_expressions.items()}
        if not keep(key):
            continue
        states = groups.setdefault(tuple(key[name] for name in by), zero(view))
        for name, measure in view.measures.items():
            value = True if measure.of is None else measure.of.evaluate(row)
            if value is not None and (measure.where is None or measure.where.evaluate(row)):
                states[name] = measure.algebra.add(states[name], value, event.position)
    return {group: view.present(states) for group, states in groups.items()}


def zero(view: View) -> dict[str, Any]:
    return {name: algebra.zero() for name, algebra in view.algebras.items()}


def same(found: Any, expected: Any) -> bool:
    """The same answers; of floats all but the last digits."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[name], expected[name]) for name in expected)
    if isinstance(expected, float):
        return bool(found == pytest.approx(expected, rel=1e-9, abs=1e-9))
    return bool(found == expected)


def by_group(rows: Iterable[ResultRow]) -> dict[tuple[Period, tuple[Any, ...]], dict[str, Any]]:
    return {(row.period, row.key): row.answers for row in rows}


# ---- speed states --------------------------------------------------------------


def fresh(of: Iterable[Event], cut: Cut) -> list[Event]:
    """From a cut on, the events that a speed layer counts: no duplicates of what is below it, of others the first."""
    known = {event.event_id for event in below(of, cut)}
    later = [event for event in of if event.offset >= cut.get(event.partition, 0) and event.event_id not in known]
    return in_memory.counted(later)


def speed_states(view: View, of: Iterable[Event]) -> list[tuple[int, bytes, bytes]]:
    """As Redis keeps them."""
    return [
        (bucket // MICROS, pack_key(key), pack(view.algebras, state))
        for (bucket, key), state in in_memory.fold(view, of).items()
    ]


# ---- batch runs ----------------------------------------------------------------


@dataclass
class Place:
    """The batch data of a source, in a home of its own."""

    home: Path
    views: Sequence[View] = VIEWS
    redis_url: str = "redis://127.0.0.1:1/0"
    is_older: bool = False
    """Whether a Tidemark that did not limit the length of texts wrote it."""
    settings: Settings = field(init=False)

    def __post_init__(self) -> None:
        self.settings = load_settings(home=self.home, redis_url=self.redis_url)
        self.source = self.views[0].source
        self.folder = BatchFolder.of(self.settings, self.source.name)

    @property
    def declarations(self) -> Declarations:
        return Declarations({self.source.name: self.source}, {view.name: view for view in self.views})

    def begin(self) -> Entry:
        """Genesis."""
        for view in self.views:
            definitions.keep(self.folder, view)
        return publish_log.begin(self.folder, {view.name: view.hash for view in self.views}, 1.0)

    def publish(self, run: int, cut: Cut, of: Sequence[Event], *, base: int | None = None) -> Entry:
        """A run over the events below the cut; with `base` one that goes on from that run, and shares its files."""
        self.write(run, cut, of, base=base)
        return self.append(run, cut)

    def append(self, run: int, cut: Cut, *, unpin: bool = False) -> Entry:
        catalog = {view.name: view.hash for view in self.views}
        return publish_log.append(self.folder, Entry(run, cut, catalog, 1_700_000_000.0 + run), unpin=unpin)

    def write(self, run: int, cut: Cut, of: Sequence[Event], *, base: int | None = None) -> None:
        """Everything but the line in the log."""
        before = read_manifest(self.folder, base) if base else None
        views = []
        for view in self.views:
            definitions.keep(self.folder, view)
            known = next((each for each in before.views if each.hash == view.hash), None) if before else None
            changed_days = None
            if known is not None and before is not None:
                changed_days = {_day(bucket) for bucket, _ in in_memory.fold(view, fresh(below(of, cut), before.cut))}
            views.append(self._view_data(run, view, in_memory.counted(below(of, cut)), known, changed_days))
        made = Manifest(run, self.source.name, cut, base, 1.0, 2.0, len(below(of, cut)), 0, 0, tuple(views), ())
        write_manifest(self.folder, made)

    def _view_data(
        self, run: int, view: View, counted: list[Event], known: ViewData | None, changed_days: set[str] | None
    ) -> ViewData:
        folded = in_memory.fold(without_limit(view) if self.is_older else view, counted)
        groups = [(bucket, key, pack(view.algebras, state)) for (bucket, key), state in folded.items()]
        return replace(self.view_data(run, view, groups, known, changed_days), rows=len(counted))

    def view_data(
        self,
        run: int,
        view: View,
        groups: Sequence[PackedGroup],
        known: ViewData | None = None,
        changed_days: set[str] | None = None,
    ) -> ViewData:
        """The files of one view of a run, with these groups."""
        by_day: dict[str, list[PackedGroup]] = {}
        for group in groups:
            by_day.setdefault(_day(group[0]), []).append(group)
        table = self.folder.table(view.name, view.hash)
        files: dict[str, list[Path]] = {}
        for day, of_day in by_day.items():
            if changed_days is None or day in changed_days:
                path = table / f"day={day}" / f"{run}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                _write(path, view, of_day)
                files[day] = [path]
        names = known.index if known is not None else ()
        if files:
            name = f"{table.name}/{run:08}.mdb"
            opened = open_index(self.folder.indexes / each for each in names)
            build(self.folder.indexes / name, view, files, opened if names else None)
            opened.close()
            names = (*names, name)
        listed = [
            DataFile(day, str(path.relative_to(table)), 1, path.stat().st_size) for day in files for path in files[day]
        ]
        kept = [file for file in known.files if file.day not in files] if known else []
        return ViewData(
            view.name,
            view.hash,
            "full",
            (*kept, *listed),
            len(groups),
            {},
            names,
            0.1,
            max_key_bytes=0 if self.is_older else MAX_BYTES,
        )


def without_limit(view: View) -> View:
    """The view as an older Tidemark computed it: long texts are stored as they are."""
    found = replace(view)
    found.__dict__["key_expressions"] = found._declared_keys
    found.__dict__["measures"] = {name: replace(each, of=each.declared) for name, each in view.measures.items()}
    assert found.hash == view.hash
    return found


def _day(micros: int) -> str:
    return datetime.fromtimestamp(micros // MICROS, UTC).date().isoformat()


def _write(path: Path, view: View, groups: Sequence[PackedGroup]) -> None:
    columns = {"bucket": pa.array([bucket for bucket, _, _ in groups], pa.timestamp("us", "UTC"))}
    for place, (name, expression) in enumerate(view.key_expressions.items()):
        columns[name] = pa.array([key[place] for _, key, _ in groups], ARROW[expression.type.kind])
    columns["state"] = pa.array([state for _, _, state in groups], pa.binary())
    pq.write_table(pa.table(columns), path)


# ---- the speed layer, as it writes ---------------------------------------------


class Writer:
    """Writes speed views as the speed layer does, event by event or in micro-batches, without Kafka and Spark."""

    def __init__(self, speed_views: SpeedViews, place: Place) -> None:
        self.speed_views, self.place = speed_views, place
        self.known = by_name(place.views)
        self.followed: frozenset[str] = frozenset()
        """Names of views whose changes somebody follows."""
        self.start()

    def start(self) -> None:
        """Become the writer, and make meta of the last entry of the log where Redis has none."""
        writer, kept = self.speed_views.start_writer()
        self.token = writer.token
        if kept.meta is None:
            newest = publish_log.last(self.place.folder)
            assert writer.init(newest.run, newest.cut, newest.catalog.values()) == Outcome.OK
        assert writer.load(1, is_last=True, name="none", seen_ids=b"", horizon_ms=0) == Outcome.OK

    def apply(self, of: Sequence[Event], end: Cut) -> None:
        """One micro-batch: everything from what is applied up to `end`."""
        kept = self.speed_views.reader.snapshot()
        assert kept.meta is not None
        generation, applied = kept.generations[-1], kept.meta.applied
        new = fresh(below(of, end), applied)
        states: dict[Group, bytes] = {}
        for view in (self.known[each] for each in generation.views):
            groups = {Group(view.hash, bucket, key): state for bucket, key, state in speed_states(view, new)}
            states |= groups | totals(view, groups)
        before = self.speed_views.reader.read_states(generation.gid, list(states))
        for group, known in zip(list(states), before, strict=True):
            if known is not None:
                states[group] = _added(self.known[group.view], known, states[group])
        ranks = {
            group: numbers(ranked(view), unpack(view.algebras, state))
            for group, state in states.items()
            if (view := self.known[group.view]).hash == group.view
        }
        hashes = [each for each in generation.views if self.known[each].name in self.followed]
        changes = entry_of([group for group in states if group.view in self.known], hashes)
        batch = MicroBatch(
            applied,
            end,
            generation.gid,
            states,
            f"m{cut_text(end)}",
            b"marks",
            ranks=ranks,
            changes=changes,
            changes_kept=MAX_ENTRIES,
        )
        said = self.speed_views.writer(self.token).apply(batch)
        assert said == (Outcome.ALREADY if cut_text(applied) == cut_text(end) else Outcome.OK)

    def open(self, run: int) -> dict[int, int]:
        """A new generation for a run; the cut that the run is to have."""
        self.known |= by_name(self.place.views)
        cut = self.speed_views.runs.open(run, [view.hash for view in self.place.views])
        assert cut is not None
        return dict(cut)


def _added(view: View, left: bytes, right: bytes) -> bytes:
    both = merge(view.algebras, unpack(view.algebras, left), unpack(view.algebras, right))
    return pack(view.algebras, both)


def steps(of: Sequence[Event], chance: Random, count: int) -> Iterator[dict[int, int]]:
    """Cuts one after another, up to the end of all events."""
    end = end_of(of)
    found: list[Mapping[int, int]] = [{p: chance.randint(0, offset) for p, offset in end.items()} for _ in range(count)]
    cut: dict[int, int] = {}
    for step in [*found, end]:
        cut = {p: max(cut.get(p, 0), step.get(p, 0)) if chance.random() < 0.8 else cut.get(p, 0) for p in end}
        yield cut
    assert is_below(cut, end)
    if cut != end:
        yield end
