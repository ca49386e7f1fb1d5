"""A home for bench_serving.py: the reference view as runs and the speed layer leave it, without Kafka and Spark.

A few hundred different states are folded from made-up events, and every group has one of them. Popular pages have more
groups and larger states.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, lru_cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from reference_view import DECLARED

from batch_layer.index import open_index
from batch_layer.index.builder import build
from hand_off import definitions, publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.bucket_totals import totals
from hand_off.generations import clean_up
from hand_off.manifests import DataFile, Manifest, ViewData, read_manifest, write_manifest
from hand_off.publish_log import Entry
from hand_off.ranks import ranked
from hand_off.speed_views import Group, MicroBatch, Outcome, SpeedViews
from infra.settings import Settings, load_settings
from views import in_memory
from views.declarations import declared_by
from views.in_memory import Event
from views.keys import pack_key
from views.state_sql import plan
from views.states import HeadReader, head_of, merge_packed, pack
from views.view import View

KEYS = 10_000
DAYS, DAY_HOURS, HOUR_S = 30, 24, 3600
END = datetime(2026, 3, 31, tzinfo=UTC)
"""Where the time of all states ends."""
POOL = 300
"""Different states."""
MAX_EVENTS = 60
"""In one of them."""
SMALL = 100
"""So many of them, the last ones, are of one to three events."""
EVENTS_OF_RUN = 1_000_000
"""What the cut of the first run says; nothing depends on it."""
AT_ONCE = 2_000
"""States of one micro-batch when the speed view is filled."""
ARROW = {"hits": pa.int64(), "users": pa.int64(), "ms": pa.float64()}
"""The answers that stand in plain columns, for other engines."""

Each = Callable[[Callable[[Any], Any], Sequence[Any]], Any]


class Made(NamedTuple):
    """One of the states."""

    packed: bytes
    columns: dict[str, Any]


@dataclass(frozen=True)
class Pages:
    """Which pages were looked at, and with which states."""

    chance: np.random.Generator

    @cached_property
    def _weights(self) -> Any:
        found = (np.arange(KEYS) + 10.0) ** -0.5
        return found / found.sum()

    def some(self, count: int) -> tuple[Any, Any]:
        """Numbers of different keys, popular ones more often, and for each the number of its state."""
        keys = self.chance.choice(KEYS, count, replace=False, p=self._weights)
        return keys, (keys * self.chance.random(count) * POOL / KEYS).astype(int)


def key_name(number: int) -> str:
    """The url of a key."""
    return f"/page/{number}"


def made_states(view: View) -> list[Made]:
    """The states, those of many events first; the same in every process."""
    chance, columns = Random(1), plan(view).answers  # noqa: S311  made-up events
    found = []
    for number in range(POOL):
        events = [
            Event(0, place, f"{number}-{place}", END - timedelta(hours=1), {
                "url": "", "user_id": f"user-{chance.randrange(50_000)}", "ms": round(chance.lognormvariate(3, 1.2), 1),
            })
            for place in range(1 + int(MAX_EVENTS * (1 - number / POOL) ** 3))
        ]  # fmt: skip
        (state,) = in_memory.fold(view, events).values()
        values = {name: view.algebras[name].column_value(state[name]) for name in columns}
        found.append(Made(pack(view.algebras, state), values))
    return found


class MadeHome:
    """A home whose batch view has about `states` groups in the last `days` days before END."""

    DECLARED = DECLARED
    """The file of views."""
    VIEW = "reference"
    """The one that is made."""

    def __init__(self, place: Path, states: int, days: int, **settings: Any) -> None:
        views = place / "views"
        views.mkdir(parents=True)
        (views / "hits.py").write_text(self.DECLARED)
        (place / "home").mkdir()
        self.settings: Settings = load_settings(home=place / "home", views_dir=views, with_examples=False, **settings)
        self.view = declared_by(self.settings).view(self.VIEW)
        self.folder = BatchFolder.of(self.settings, self.view.source.name)
        self.catalog = {self.view.name: self.view.hash}
        self.days = [(END - timedelta(days=back)).date() for back in range(days, 0, -1)]
        self.an_hour = states // (days * DAY_HOURS)
        self.states = self.an_hour * days * DAY_HOURS
        self.hits = 0
        self._pages = Pages(np.random.default_rng(2))

    @cached_property
    def _pool(self) -> list[Made]:
        return made_states(self.view)

    # ---- the batch view ----

    def make(self, each: Each) -> None:
        """The first run: Parquet files, index, manifest, and its line in the publish log. `each` is like `map`."""
        definitions.keep(self.folder, self.view)
        publish_log.begin(self.folder, self.catalog, time.time())
        files = {str(day): [self._write(day)] for day in self.days}
        name = f"{self._table.name}/00000001.mdb"
        build(self.folder.indexes / name, self.view, files, each=each)
        listed = tuple(
            DataFile(day, str(path.relative_to(self._table)), self.an_hour * DAY_HOURS, path.stat().st_size)
            for day, (path,) in files.items()
        )
        self._keep(1, ViewData(self.view.name, self.view.hash, "full", listed, self.states, {}, (name,), 0.0))
        publish_log.append(self.folder, self._entry(1, {0: EVENTS_OF_RUN}))

    def make_runs(self, numbers: Sequence[int]) -> None:
        """Further runs, each with an index of its own for the last day, ready to be published.

        The index is built once and copied: what a run computes is measured elsewhere, here it is the switch.
        """
        (data,) = read_manifest(self.folder, 1).views
        last, first = str(self.days[-1]), self.folder.indexes / data.index[0]
        built = first.with_name("built")
        before = open_index([first])
        build(built, self.view, {last: [self._table / file.path for file in data.files if file.day == last]}, before)
        before.close()
        for number in numbers:
            name = f"{first.parent.name}/{number:08}.mdb"
            shutil.copyfile(built, self.folder.indexes / name)
            self._keep(number, replace(data, kind="continued", index=(*data.index, name)), base=1)

    def publish(self, number: int, speed_views: SpeedViews) -> None:
        """Publish a run that was made, as a run does: a cut, the line in the log, then the speed views follow."""
        cut = speed_views.runs.open(number, self.catalog.values())
        assert cut is not None
        publish_log.append(self.folder, self._entry(number, dict(cut)))
        said = speed_views.runs.publish(number, cut)
        assert said == Outcome.OK, said
        clean_up(speed_views, self.folder, grace_s=0)

    def parquet(self, days: int = DAYS) -> list[str]:
        """The Parquet files of the last days."""
        return [str(path) for day in self.days[-days:] for path in sorted(self._day(day).iterdir())]

    @property
    def _table(self) -> Path:
        return self.folder.table(self.view.name, self.view.hash)

    def _day(self, day: date) -> Path:
        return self._table / f"day={day}"

    def _entry(self, run: int, cut: Mapping[int, int]) -> Entry:
        return Entry(run, cut, self.catalog, time.time())

    def _keep(self, run: int, data: ViewData, base: int | None = None) -> None:
        now = time.time()
        write_manifest(
            self.folder, Manifest(run, self.folder.source, {}, base, now, now, EVENTS_OF_RUN, 0, 0, (data,), ())
        )

    def _write(self, day: date) -> Path:
        begin = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
        hours = [self._pages.some(self.an_hour) for _ in range(DAY_HOURS)]
        keys, places = (np.concatenate(each) for each in zip(*hours, strict=True))
        buckets = np.repeat(begin + HOUR_S * np.arange(DAY_HOURS), self.an_hour) * 1_000_000
        columns = {name: pa.array([made.columns[name] for made in self._pool], ARROW[name]) for name in ARROW}
        self.hits += int(columns["hits"].to_numpy()[places].sum())
        table = pa.table({
            "bucket": pa.array(buckets, pa.timestamp("us", "UTC")),
            "url": pa.array([key_name(number) for number in range(KEYS)]).take(pa.array(keys)),
            **{name: values.take(pa.array(places)) for name, values in columns.items()},
            "state": pa.array([made.packed for made in self._pool], pa.binary()).take(pa.array(places)),
        })  # fmt: skip
        path = self._day(day) / "00000001.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(table, path)
        return path


class SpeedWriter:
    """Writes the speed views of a made home as the speed layer does: reads states, adds to them, applies.

    Each hour has the same `an_hour` groups whoever writes it, so that the speed view stays as large as it is filled.
    """

    def __init__(self, speed_views: SpeedViews, view: View, folder: BatchFolder, an_hour: int) -> None:
        self._speed_views, self._view, self._an_hour = speed_views, view, an_hour
        self._chance = np.random.default_rng()
        writer, kept = speed_views.start_writer()
        self._token = writer.token
        if kept.meta is None:
            newest = publish_log.last(folder)
            assert writer.init(newest.run, newest.cut, newest.catalog.values()) == Outcome.OK
            assert writer.load(1, is_last=True, name="", seen_ids=b"", horizon_ms=0) == Outcome.OK

    @cached_property
    def _pool(self) -> list[Made]:
        return made_states(self._view)

    def fill(self, hours: int) -> None:
        """All groups of the last hours."""
        for back in range(hours):
            groups, places = self._hour(back)
            for first in range(0, self._an_hour, AT_ONCE):
                self._apply(groups[first : first + AT_ONCE], places[first : first + AT_ONCE])

    def add(self, back: int, count: int) -> None:
        """A micro-batch: a few events for so many groups of the hour that is so many hours before the last one."""
        groups, _ = self._hour(back)
        chosen = self._chance.choice(self._an_hour, count, replace=False)
        few = self._chance.integers(POOL - SMALL, POOL, count)
        self._apply([groups[place] for place in chosen], few)

    @lru_cache(maxsize=DAY_HOURS)  # noqa: B019  as long as the writer, which ends with its process
    def _hour(self, back: int) -> tuple[list[Group], Any]:
        bucket = int(END.timestamp()) - (back + 1) * HOUR_S
        keys, places = Pages(np.random.default_rng(3 + back)).some(self._an_hour)
        return [Group(self._view.hash, bucket, pack_key((key_name(number),))) for number in keys], places

    def _apply(self, groups: Sequence[Group], places: Sequence[int]) -> None:
        while not self._is_applied(groups, places):
            pass  # a run was opened meanwhile, and its generation has other states

    def _is_applied(self, groups: Sequence[Group], places: Sequence[int]) -> bool:
        kept, algebras = self._speed_views.reader.snapshot(), self._view.algebras
        assert kept.meta is not None
        gid, start = kept.generations[-1].gid, kept.meta.applied
        added = {group: self._pool[place].packed for group, place in zip(groups, places, strict=True)}
        added |= totals(self._view, added)
        known = self._speed_views.reader.read_states(gid, list(added))
        states = {
            group: state if before is None else merge_packed(algebras, [before, state])
            for (group, state), before in zip(added.items(), known, strict=True)
        }
        end = {0: start.get(0, 0) + len(groups)}
        names = ranked(self._view)
        readers = [HeadReader(algebras, name) for name in names]
        numbers = {group: tuple(reader.read(head_of(states[group])) for reader in readers) for group in groups}
        said = self._speed_views.writer(self._token).apply(MicroBatch(start, end, gid, states, ranks=numbers))
        assert said in (Outcome.OK, Outcome.RETRY), said
        return said == Outcome.OK
