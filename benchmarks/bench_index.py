"""The read index of a batch view: how long it takes to build, how large it is, and how long questions to it take.

    python benchmarks/bench_index.py [--groups 2000000]

The reference view per hour and url, made up without Spark: 30 days, of which the last two have 10,000 urls an hour.
Beside it the same states in Parquet, asked by DuckDB, and as the floor one field of a hash in Redis.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import report
from redis import Redis
from redis.exceptions import ConnectionError as NotUp
from reference_view import DECLARED

from batch_layer.index import Index, Level, open_index
from batch_layer.index.builder import build
from infra.stack.redis_server import find_redis_server
from views.aggregates.algebra import NOWHERE
from views.keys import pack_key
from views.states import pack
from views.view import View

DAYS, URLS, USERS, DENSE_DAYS = 30, 10_000, 200_000, 2
START = datetime(2026, 3, 1, tzinfo=UTC)
DAY_S, HOUR_S = 86_400, 3_600
STATES = 20_000
"""Different states; groups take theirs from these."""
PROCESSES, ROUNDS = 2, 300


def main() -> None:
    """Measure, and write the result and the page."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--groups", type=int, default=2_000_000)
    given = arguments.parse_args()
    machine = report.machine()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        files = make(place, given.groups)
        built = building(place / "index.mdb", files)
        times = reading(place / "index.mdb", files, place)
    write(built, times, machine)


# ---- made-up groups ----------------------------------------------------------------


def view() -> View:
    """The reference view."""
    found: dict[str, Any] = {}
    exec(DECLARED, found)  # noqa: S102  # as `tidemark` would load it
    made: View = found["reference"]
    return made


def make(place: Path, groups: int) -> dict[str, list[Path]]:
    """The groups of each day as a Parquet file, like those of a run."""
    chance = np.random.default_rng(1)
    states, hits = made_states()
    dense = URLS * 24 * DENSE_DAYS
    an_hour = max((groups - dense) // (24 * (DAYS - DENSE_DAYS)), 1)
    files = {}
    for day in range(DAYS):
        urls = [
            np.arange(URLS) if day >= DAYS - DENSE_DAYS else chance.choice(URLS, an_hour, replace=False)
            for _ in range(24)
        ]
        hours = np.repeat(np.arange(24), [len(each) for each in urls])
        order = chance.permutation(len(hours))
        chosen = chance.integers(0, STATES, len(hours))
        begin = START + timedelta(days=day)
        micros = (int(begin.timestamp()) + hours[order] * HOUR_S) * 1_000_000
        table = {
            "bucket": pa.array(micros, pa.timestamp("us", "UTC")),
            "url": pa.array([f"/page/{url}" for url in np.concatenate(urls)[order]]),
            "hits": hits[chosen],
            "state": states.take(pa.array(chosen)),
        }
        path = place / f"{begin:%Y-%m-%d}.parquet"
        pq.write_table(pa.table(table), path, compression="zstd", use_dictionary=["url"])
        files[f"{begin:%Y-%m-%d}"] = [path]
    return files


def made_states() -> tuple[pa.Array, np.ndarray]:
    """States of 1 to some hundred hits, most of them of few, and their hits."""
    chance, algebras = random.Random(1), view().algebras  # noqa: S311  # no secret
    packed, hits = [], []
    for _ in range(STATES):
        count = min(int(chance.paretovariate(1.1)), 500)
        state = {name: algebra.zero() for name, algebra in algebras.items()}
        for _ in range(count):
            ms = round(math.exp(3 + 1.2 * chance.gauss(0, 1)), 1)
            values = {"hits": True, "users": f"user-{chance.randrange(USERS)}", "ms": ms, "latency": ms}
            state = {name: algebras[name].add(state[name], value, NOWHERE) for name, value in values.items()}
        packed.append(pack(algebras, state))
        hits.append(count)
    return pa.array(packed, pa.binary()), np.array(hits)


# ---- building ------------------------------------------------------------------------


@dataclass
class Built:
    """What building took, and what it made."""

    groups: int
    seconds: float
    peak_mb: float
    index_mb: float
    parquet_mb: float
    states_mb: float


def building(path: Path, files: dict[str, list[Path]]) -> Built:
    """Build the index in as many processes as a run of Spark on this machine would have."""
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        pool.map(math.sqrt, range(PROCESSES))  # they are up before the clock runs, as Spark's workers are
        with report.peak_memory() as peak:
            began = time.monotonic()
            groups = build(path, view(), files, each=lambda work, tasks: pool.imap(work, tasks, chunksize=1))
            took = time.monotonic() - began
    all_files = [file for of_day in files.values() for file in of_day]
    states = sum(pq.read_table(file, columns=["state"]).nbytes for file in all_files)
    return Built(
        groups,
        took,
        peak[0],
        path.stat().st_size / 1e6,
        sum(file.stat().st_size for file in all_files) / 1e6,
        states / 1e6,
    )


# ---- reading -------------------------------------------------------------------------


def reading(path: Path, files: dict[str, list[Path]], place: Path) -> dict[str, list[float]]:
    """Seconds of each question, in turns so that a busy moment falls on all."""
    index = open_index([path])
    chance = random.Random(2)  # noqa: S311  # no secret
    keys = [f"/page/{chance.randrange(URLS)}" for _ in range(ROUNDS)]
    with redis_with(index) as redis:
        ways: dict[str, Callable[[str], Any]] = {**index_ways(index), "redis: one field of a hash": redis}
        times = measured(ways, keys)
    times |= measured(duckdb_ways(files), keys[:15])
    index.close()
    opening = []
    for _ in range(50):
        began = time.perf_counter()
        open_index([path]).close()
        opening.append(time.perf_counter() - began)
    return {**times, "index: open and close": opening}


def measured(ways: dict[str, Callable[[str], Any]], keys: list[str]) -> dict[str, list[float]]:
    """The first round warms up and is not counted."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for key in (keys[0], *keys):
        for name, way in ways.items():
            began = time.perf_counter()
            way(key)
            found[name].append(time.perf_counter() - began)
    return {name: times[1:] for name, times in found.items()}


def span(days: float, hours: int = 0) -> tuple[int, int]:
    """The last days of the time that there is, and some hours before their end."""
    end = int(START.timestamp()) + DAYS * DAY_S - hours * HOUR_S
    return end - int(days * DAY_S), end


def index_ways(index: Index) -> dict[str, Callable[[str], Any]]:
    """What the serving layer asks an index."""
    month, day, shifted = span(DAYS), span(1), span(1, hours=5)
    return {
        "index: a key, 30 days by day": lambda url: list(index.of_key(Level.DAY, pack_key((url,)), *month)),
        "index: a key, 30 days by hour": lambda url: list(index.of_key(Level.GRAIN, pack_key((url,)), *month)),
        "index: total, 30 days by day": lambda _: list(index.totals(Level.DAY, *month)),
        "index: top 10 of 24 h": lambda _: top(index, *shifted),
        "index: top 10 of a whole day": lambda _: top(index, *day),
        "index: top 10 of 30 days": lambda _: top(index, *month),
    }


def top(index: Index, start: int, end: int) -> list[tuple[bytes, int]]:
    """The keys with the most hits, in order."""
    sums = index.sums("hits", start, end)
    assert sums is not None
    places = np.argpartition(sums.values, -10)[-10:]
    return sorted(((sums.key(place), int(sums.values[place])) for place in places.tolist()), key=lambda each: -each[1])


@contextmanager
def redis_with(index: Index) -> Iterator[Callable[[str], Any]]:
    """Asks a Redis of its own for one state, of a hash with one for each url."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [str(find_redis_server()), "--port", str(port), "--bind", "127.0.0.1", "--save", ""], stdout=subprocess.DEVNULL
    )
    try:
        client = Redis(port=port)
        while True:
            try:
                client.ping()
                break
            except NotUp:
                time.sleep(0.05)
        start, end = span(1)
        for tile in index.of_prefix(Level.DAY, b"", start, end):
            client.hset("day", tile.key, tile.state)
        yield lambda url: client.hget("day", pack_key((url,)))
        client.close()
    finally:
        server.kill()
        server.wait()


def duckdb_ways(files: dict[str, list[Path]]) -> dict[str, Callable[[str], Any]]:
    """The same over the Parquet files of a run. States are read and not merged, which DuckDB cannot do."""
    database = duckdb.connect()
    database.execute(f"SET threads = {PROCESSES}; SET TimeZone = 'UTC'")
    database.execute("SET parquet_metadata_cache = true")
    paths = [str(file) for of_day in files.values() for file in of_day]
    database.execute(f"CREATE VIEW reference AS SELECT * FROM read_parquet({paths})")
    start, end = (datetime.fromtimestamp(second, UTC) for second in span(1, hours=5))

    def ask(text: str, *given: Any) -> list[Any]:
        return database.execute(text, given).fetchall()

    return {
        "duckdb: a key, 30 days by hour": lambda url: ask(
            "SELECT bucket, state FROM reference WHERE url = ? ORDER BY bucket", url
        ),
        "duckdb: total hits, 30 days by day": lambda _: ask(
            "SELECT date_trunc('day', bucket), sum(hits) FROM reference GROUP BY 1 ORDER BY 1"
        ),
        "duckdb: top 10 of 24 h": lambda _: ask(
            "SELECT url, sum(hits) FROM reference WHERE bucket >= ? AND bucket < ? GROUP BY 1 ORDER BY 2 DESC LIMIT 10",
            start,
            end,
        ),
    }


def write(built: Built, times: dict[str, list[float]], machine: dict[str, str]) -> None:
    """The result as figures and as text."""
    found = {
        name: {"p50_ms": statistics.median(each) * 1e3, "p99_ms": sorted(each)[int(len(each) * 0.99)] * 1e3}
        for name, each in times.items()
    }
    aims = {
        "index: a key, 30 days by day": "0.3 ms",
        "index: total, 30 days by day": "0.5 ms",
        "index: top 10 of 24 h": "2 ms",
    }
    text = report.table(
        ("", "p50", "p99", "aim"),
        *(
            (name, f"{each['p50_ms']:.3f} ms", f"{each['p99_ms']:.3f} ms", aims.get(name, ""))
            for name, each in found.items()
        ),
    )
    text += (
        f"\n\n{built.groups:,} groups per hour and url (count, distinct users, sum, quantiles), {DAYS} days; the last "
        f"24 h have {URLS * 24:,}. Tiles are read as packed states, and not merged or presented. DuckDB reads the "
        "Parquet files.\n\n"
    )
    text += report.table(
        ("building", ""),
        ("time, in two processes", f"{built.seconds:.1f} s ({built.groups / built.seconds:,.0f} groups a second)"),
        ("most memory of a process", f"{built.peak_mb:.0f} MB"),
        ("index on disk", f"{built.index_mb:.0f} MB"),
        ("states of the view, as they are", f"{built.states_mb:.0f} MB"),
        ("Parquet files (of few different states: real ones are larger)", f"{built.parquet_mb:.0f} MB"),
    )
    report.write("index", "Read index of batch views", {"machine": machine, "built": vars(built), "times": found}, text)


if __name__ == "__main__":
    main()
