"""DuckDB and ClickHouse, timed for bench_serving.py. Each has a process of its own, and leaves nothing to the next."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

from questions import Files, sql

Times = dict[str, list[list[float]]]
"""Of each question, in each round, the seconds of every answer."""


def by_duckdb(files: Files, rounds: int, seconds: float) -> Times:
    """DuckDB in process."""
    import duckdb

    engine = duckdb.connect()
    engine.sql("SET parquet_metadata_cache = true")
    queries = sql(files, lambda found: f"read_parquet({found})", "date_trunc('day', bucket)")
    return _timed(queries, lambda query: engine.sql(query).fetchall(), rounds, seconds)


def by_chdb(files: Files, rounds: int, seconds: float) -> Times:
    """ClickHouse in process."""
    from chdb import session

    def reading(found: list[str]) -> str:
        """They have one name, in the folders of their days."""
        name, table = Path(found[0]).name, Path(found[0]).parents[1]
        days = ",".join(Path(path).parent.name for path in found)
        return f"file('{table}/{{{days}}}/{name}', Parquet)"

    with tempfile.TemporaryDirectory() as scratch:
        engine = session.Session(scratch)
        queries = sql(files, reading, "toStartOfDay(bucket)")
        found = _timed(queries, lambda query: engine.query(query, "JSONEachRow").bytes(), rounds, seconds)
        engine.close()
    return found


def _timed(queries: dict[str, list[str]], ask: Callable[[str], Any], rounds: int, seconds: float) -> Times:
    """One after another, in rounds that take turns; the first answer of each question warms up."""
    for query, *_ in queries.values():
        assert ask(query)
    found: Times = {name: [] for name in queries}
    for _ in range(rounds):
        for name, each in queries.items():
            times: list[float] = []
            coming, end = cycle(each), time.perf_counter() + seconds
            while (began := time.perf_counter()) < end:
                ask(next(coming))
                times.append(time.perf_counter() - began)
            found[name].append(times)
    return found
