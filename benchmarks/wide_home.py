"""Homes for bench_wide.py: very many groups in an hour, or a year by two keys, before or after a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import bench_history
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from made_home import ARROW, AT_ONCE, DAY_HOURS, END, HOUR_S, POOL, SMALL, Made, MadeHome, SpeedWriter, key_name

from hand_off import definitions, publish_log
from hand_off.speed_views import Group
from views import in_memory
from views.in_memory import Event
from views.keys import pack_key
from views.states import pack

BOTH = """
carriers = View(
    "carriers", source=flights, grain="1h", keys={"origin": "origin", "carrier": "carrier"},
    answers={**carriers.answers, **origins.answers, "earliest": Min("dep_delay")},
)
del origins
"""
"""In place of the two views of bench_history.py one by two keys with the 15 answers of both and one more."""


def places_of(count: int) -> Any:
    """The numbers of states: the smallest ones for most groups, so that very many have the same number."""
    places = np.full(count, POOL - 1)
    places[:: max(1, count // 50)] = np.arange(len(places[:: max(1, count // 50)])) % (POOL - SMALL)
    return places


def flights(count: int) -> Iterator[Event]:
    """The flights of a year, each once."""
    seen = set[str]()
    for offset, row in enumerate(bench_history.rows(count)):
        if row["flight_id"] not in seen:
            seen.add(row["flight_id"])
            fields = {name: None if value == "" else value for name, value in row.items()}
            fields["event_time"] = datetime.fromisoformat(row["event_time"])
            yield Event(0, offset, row["flight_id"], fields["event_time"], fields)


class WideHome(MadeHome):
    """A home whose batch view has `urls` groups in the last hour before END, and nothing else."""

    def __init__(self, place: Path, urls: int, **settings: Any) -> None:
        super().__init__(place, DAY_HOURS * urls, 1, **settings)
        self.states = urls

    def _write(self, day: date) -> Path:
        begin = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
        bucket = (begin + (DAY_HOURS - 1) * HOUR_S) * 1_000_000
        places = places_of(self.an_hour)
        columns = {name: pa.array([made.columns[name] for made in self._pool], ARROW[name]) for name in ARROW}
        self.hits = int(columns["hits"].to_numpy()[places].sum())
        table = pa.table({
            "bucket": pa.array(np.full(self.an_hour, bucket), pa.timestamp("us", "UTC")),
            "url": pa.array([key_name(number) for number in range(self.an_hour)]),
            **{name: values.take(pa.array(places)) for name, values in columns.items()},
            "state": pa.array([made.packed for made in self._pool], pa.binary()).take(pa.array(places)),
        })  # fmt: skip
        path = self._day(day) / "00000001.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(table, path)
        return path


class SpeedHome(WideHome):
    """The same groups before there was any run: all of them are in the speed view."""

    def make(self, _each: Callable[..., Any]) -> None:
        """The publish log begins; that is all there is before the first run."""
        definitions.keep(self.folder, self.view)
        publish_log.begin(self.folder, self.catalog, 0.0)


class YearHome(SpeedHome):
    """A year of flights by the hour and by two keys, as bench_history.py imports it, before any run."""

    DECLARED = bench_history.DECLARED + BOTH
    VIEW = "carriers"


class WideSpeedWriter(SpeedWriter):
    """Writes `an_hour` different groups of the last hour, as the batch view of a WideHome has them."""

    @lru_cache(maxsize=1)  # noqa: B019  as long as the writer, which ends with its process
    def _hour(self, back: int) -> tuple[list[Group], Any]:
        bucket = int(END.timestamp()) - (back + 1) * HOUR_S
        groups = [Group(self._view.hash, bucket, pack_key((key_name(number),))) for number in range(self._an_hour)]
        return groups, places_of(self._an_hour)


class YearSpeedWriter(SpeedWriter):
    """Writes the states of the flights of a year: `an_hour` is how many flights there are."""

    def fill(self, hours: int) -> None:
        """All groups; there is no choice of hours."""
        for first in range(0, len(self._groups), AT_ONCE):
            count = min(AT_ONCE, len(self._groups) - first)
            self._apply(self._groups[first : first + count], range(first, first + count))

    def add(self, back: int, count: int) -> None:
        """The events of so many of the last groups come again."""
        places = range(len(self._groups) - count, len(self._groups))
        self._apply([self._groups[place] for place in places], places)

    @cached_property
    def _groups(self) -> list[Group]:
        """In the order of time; the states are in `_pool`, in the same order."""
        states = sorted(in_memory.fold(self._view, flights(self._an_hour)).items())
        self._pool = [Made(pack(self._view.algebras, state), {}) for _, state in states]
        return [Group(self._view.hash, bucket // 1_000_000, pack_key(key)) for (bucket, key), _ in states]
