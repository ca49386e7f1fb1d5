"""Homes for bench_wide.py: very many groups in an hour, or a year by two keys, before or after a run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from made_home import ARROW, DAY_HOURS, END, HOUR_S, POOL, SMALL, MadeHome, SpeedWriter, key_name
from reference_view import DECLARED

from hand_off import definitions, publish_log
from hand_off.speed_views import Group
from views.keys import pack_key

YEAR_HOURS = 365 * DAY_HOURS
CARRIERS, ORIGINS = 12, 3


def places_of(count: int) -> Any:
    """The numbers of states: the smallest ones for most groups, so that very many have the same number."""
    places = np.full(count, POOL - 1)
    places[:: max(1, count // 50)] = np.arange(len(places[:: max(1, count // 50)])) % (POOL - SMALL)
    return places


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
    """A year by the hour and by two keys, before any run."""

    DECLARED = DECLARED.replace("url string", "url string, origin string").replace(
        'keys={"url": "url"}', 'keys={"carrier": "url", "origin": "origin"}'
    )


class WideSpeedWriter(SpeedWriter):
    """Writes `an_hour` different groups of the last hour, as the batch view of a WideHome has them."""

    @lru_cache(maxsize=1)  # noqa: B019  as long as the writer, which ends with its process
    def _hour(self, back: int) -> tuple[list[Group], Any]:
        bucket = int(END.timestamp()) - (back + 1) * HOUR_S
        groups = [Group(self._view.hash, bucket, pack_key((key_name(number),))) for number in range(self._an_hour)]
        return groups, places_of(self._an_hour)


class YearSpeedWriter(SpeedWriter):
    """Writes `an_hour` pairs of keys in each hour of the year before END."""

    @lru_cache(maxsize=DAY_HOURS)  # noqa: B019  as long as the writer, which ends with its process
    def _hour(self, back: int) -> tuple[list[Group], Any]:
        bucket = int(END.timestamp()) - (back + 1) * HOUR_S
        pairs = [(f"C{number // ORIGINS}", f"O{number % ORIGINS}") for number in range(CARRIERS * ORIGINS)]
        groups = [
            Group(self._view.hash, bucket, pack_key(pairs[(back + place) % len(pairs)]))
            for place in range(self._an_hour)
        ]
        return groups, places_of(self._an_hour)
