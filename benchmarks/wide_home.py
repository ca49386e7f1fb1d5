"""A home for bench_wide.py: very many urls in one hour, most of them with one event, as a batch run leaves them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from made_home import ARROW, DAY_HOURS, HOUR_S, POOL, SMALL, MadeHome, key_name


class WideHome(MadeHome):
    """A home whose batch view has `urls` groups in the last hour before END, and nothing else."""

    def __init__(self, place: Path, urls: int, **settings: Any) -> None:
        super().__init__(place, DAY_HOURS * urls, 1, **settings)
        self.states = urls

    def _write(self, day: date) -> Path:
        begin = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
        bucket = (begin + (DAY_HOURS - 1) * HOUR_S) * 1_000_000
        # The smallest states for most urls, so that very many have the same number.
        places = np.full(self.an_hour, POOL - 1)
        places[:: self.an_hour // 50] = np.arange(len(places[:: self.an_hour // 50])) % (POOL - SMALL)
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
