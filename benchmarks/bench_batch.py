"""The reference view over a master table, beside the same view by hand in PySpark, DuckDB and ClickHouse, in one run.

    python benchmarks/bench_batch.py [--events 10000000] [--rounds 3] [--memory 1g]

Per hour and url: count, distinct users, sum and quantiles of ms. All read the same Parquet files of the master table.
The rounds take turns; the first one warms up and is not counted. Then a run that goes on from another is measured:
one million new events after many old ones, and after few.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import report
from pyspark.sql import DataFrame, SparkSession
from reference_view import DECLARED

from batch_layer.run import run_batch
from batch_layer.tables import write_files
from infra.settings import Settings, load_settings
from infra.spark.session import spark_session
from master_dataset.reading.read_spark import records_between, without_duplicates
from master_dataset.table.append import append, commit_lock, create_table
from master_dataset.table.delta_log import live_files, read_commits
from master_dataset.table.paths import table_path
from master_dataset.table.proofs import Kind, Proof
from views.declarations import load_declarations
from views.on_spark.states import states
from views.view import View

CHUNK = 1_000_000
PER_DAY = 330_000
URLS, USERS = 10_000, 200_000
QUANTILES = (0.5, 0.95, 0.99)
DUCKDB_BYTES = 10 * 2**30
READING = "reading its columns alone"
WARMING = ("Tidemark, the view", "PySpark by hand")
"""What the first round, which is not counted, runs: after them the JVM is warm for the others too."""


def main() -> None:
    """Measure, and write the result and the page."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--events", type=int, default=10_000_000)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--memory", default="1g", help="of Spark's JVM, which does the work on one machine")
    given = arguments.parse_args()
    machine = report.machine()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "views").mkdir()
        (place / "views" / "hits.py").write_text(DECLARED)
        settings = load_settings(
            home=place / "home", views_dir=place / "views", with_examples=False, spark_driver_memory=given.memory
        )
        spark = spark_session(settings, "bench-batch")
        bench = Bench(spark, settings, place)
        bench.fill(0, given.events)
        full = bench.contest(given.rounds)
        more = bench.go_on(given.events)
        spark.stop()
    write(machine, full, more, given.events, given.memory)


@dataclass
class Measured:
    """Seconds of each round, and the most memory of any."""

    seconds: list[float]
    peak_mb: float = 0.0


@dataclass
class Bench:
    """A master table and everybody who computes the view from it."""

    spark: SparkSession
    settings: Settings
    place: Path

    @property
    def view(self) -> View:
        """The reference view."""
        return load_declarations(self.settings.views_dir, with_catalog=False).view("reference")

    @property
    def table(self) -> Path:
        """The master table."""
        return table_path(self.settings, "hits")

    def fill(self, start: int, count: int) -> None:
        """Append made-up hits, as the archiver would: time goes on, 5 % come up to an hour late, 1 % up to two days."""
        create_table(self.spark, self.table, self.view.source)
        for begin in range(start, start + count, CHUNK):
            end = min(begin + CHUNK, start + count)
            proof = Proof(Kind.APPEND, "hits", "id", start={0: begin}, end={0: end})
            with commit_lock(self.table):
                append(self.spark, self.table, made(self.spark, begin, end), proof)

    def contest(self, rounds: int) -> dict[str, Measured]:
        """Everybody in turns."""
        files = [str(self.table / path) for path in live_files(read_commits(self.table))]
        out = self.place / "out"
        out.mkdir()
        ways: dict[str, Callable[[], None]] = {
            "Tidemark, the view": self.tidemark_view,
            "PySpark by hand": lambda: self.by_hand(self.events(), out),
            "Tidemark, a whole run": lambda: self.whole_run(full=True),
            "PySpark by hand, duplicates removed": lambda: self.by_hand(
                self.events().dropDuplicates(["event_id"]), out
            ),
            READING: self.reading,
            "DuckDB, values only": lambda: in_child(by_duckdb, files, out),
            "ClickHouse in process (chdb), states": lambda: in_child(by_chdb, files, out),
        }
        found = {name: Measured([]) for name in ways}
        for number in range(rounds + 1):
            for name, way in ways.items():
                if not number and name not in WARMING:
                    continue
                with report.peak_memory() as peak:
                    began = time.monotonic()
                    try:
                        way()
                    except ChildFailed as error:
                        sys.stderr.write(f"round {number}: {name}: {error}\n")
                        continue
                    took = time.monotonic() - began
                sys.stderr.write(f"round {number}: {name}: {took:.1f} s, {peak[0]:.0f} MB\n")
                if number:
                    found[name].seconds.append(took)
                    found[name].peak_mb = max(found[name].peak_mb, peak[0])
        return found

    def go_on(self, events: int) -> dict[str, Measured]:
        """One million new events after all the others; and, in a table of their own, after one million."""
        found = {}
        old = events
        for name in (f"{CHUNK:,} new after {events:,}", f"{CHUNK:,} new after {CHUNK:,}"):
            if name.endswith(f"after {CHUNK:,}"):
                self.settings = self.settings.model_copy(update={"home": self.place / "small"})
                self.settings.home.mkdir()
                self.fill(0, CHUNK)
                old = CHUNK
            self.whole_run(full=True)
            measured = Measured([])
            for number in range(3):
                self.fill(old + number * CHUNK, CHUNK)
                with report.peak_memory() as peak:
                    began = time.monotonic()
                    self.whole_run(full=False)
                    took = time.monotonic() - began
                sys.stderr.write(f"{name}, {number}: {took:.1f} s, {peak[0]:.0f} MB\n")
                if number:
                    measured.seconds.append(took)
                    measured.peak_mb = max(measured.peak_mb, peak[0])
            found[name] = measured
        return found

    def events(self) -> DataFrame:
        """What is in the master table."""
        cut = {0: 2**62}
        return without_duplicates(records_between(self.spark, self.table, {}, cut), None)

    def tidemark_view(self) -> None:
        """The states of the view, written as the batch layer writes them."""
        write_files(self.spark, self.place / "alone", states(self.events(), self.view))

    def reading(self) -> None:
        """What several views of a source could share, if one pass over the events made them all."""
        columns = ("event_time", "event.url", "event.user_id", "event.ms")
        self.events().select(*columns).write.format("noop").mode("overwrite").save()

    def by_hand(self, events: DataFrame, out: Path) -> None:
        """The same view as a person would write it, with Spark's own sketches, into Delta by day."""
        (
            events.selectExpr("date_trunc('hour', event_time) as bucket", "event.url", "event.user_id", "event.ms")
            .groupBy("bucket", "url")
            .agg(*by_hand_columns())
            .selectExpr("*", "to_date(bucket) as day")
            .write.format("delta")
            .mode("overwrite")
            .partitionBy("day")
            .save(str(out / "by_hand"))
        )

    def whole_run(self, *, full: bool) -> None:
        """As `tidemark batch run` does it: duplicates, view, checks, manifest, publish."""
        run_batch(self.settings, "hits", full=full, spark=self.spark)


def by_hand_columns() -> list[Any]:
    """Count, distinct users, sum and quantiles."""
    from pyspark.sql import functions as f

    return [
        f.count(f.lit(1)).alias("hits"),
        f.expr("hll_sketch_agg(user_id, 12)").alias("users"),
        f.sum("ms").alias("ms"),
        f.expr("kll_sketch_agg_double(ms)").alias("latency"),
    ]


def made(spark: SparkSession, begin: int, end: int) -> DataFrame:
    """Rows of the master table: `begin` to `end` are their offsets."""
    late = (
        "CASE WHEN draw < 0.01 THEN pmod(hash(id, 1), 172800) WHEN draw < 0.06 THEN pmod(hash(id, 2), 3600) ELSE 0 END"
    )
    return (
        spark.range(begin, end)
        .selectExpr("id", "pmod(hash(id, 3), 1000000) / 1e6 AS draw", "pmod(hash(id, 4), 1000000) / 1e6 AS popular")
        .selectExpr(
            "id",
            f"timestamp_seconds(1767225600 + 172800 + cast(id * 86400 / {PER_DAY} AS bigint) - {late}) AS event_time",
            f"concat('/page/', cast(pow(popular, 3) * {URLS} AS int)) AS url",
            f"concat('user-', pmod(hash(id, 5), {USERS})) AS user_id",
            "round(exp(3 + 1.2 * sqrt(-2 * ln((pmod(hash(id, 6), 1000000) + 1) / 1000001)) "
            "* cos(6.283 * pmod(hash(id, 7), 1000000) / 1e6)), 1) AS ms",
        )
        .selectExpr("*", "concat('e', lpad(id, 12, '0')) AS event_id")
        .selectExpr(
            "'hits' AS topic",
            "0 AS partition",
            "id AS offset",
            "event_time AS timestamp",
            "0 AS timestampType",
            "cast(NULL AS binary) AS key",
            "cast(to_json(struct(event_id, event_time, url, user_id, ms)) AS binary) AS value",
            "cast(NULL AS array<struct<key:string,value:binary>>) AS headers",
            "event_id",
            "event_time",
            "cast(NULL AS string) AS invalid",
            "struct(event_id, event_time, url, user_id, ms) AS event",
        )
    )


def by_duckdb(files: list[str], out: Path) -> None:
    """DuckDB's own approximations, of which only the values can be kept."""
    import duckdb

    duckdb.sql("SET threads = 2")
    resource.setrlimit(resource.RLIMIT_AS, (DUCKDB_BYTES, DUCKDB_BYTES))  # else it takes all that the machine has
    duckdb.sql("SET memory_limit = '6GB'")
    duckdb.sql(f"SET temp_directory = '{out / 'duckdb_scratch'}'")
    target = out / "duckdb.parquet"
    duckdb.sql(
        f"""COPY (SELECT date_trunc('hour', event_time) AS bucket, event.url AS url, count(*) AS hits,
            approx_count_distinct(event.user_id) AS users, sum(event.ms) AS ms,
            approx_quantile(event.ms, {list(QUANTILES)}) AS latency
            FROM read_parquet({files}) GROUP BY 1, 2) TO '{target}' (FORMAT parquet, COMPRESSION zstd)"""
    )


def by_chdb(files: list[str], out: Path) -> None:
    """ClickHouse's mergeable states."""
    from chdb import session

    shares = ", ".join(map(str, QUANTILES))
    name = files[0].rsplit("/", 1)[0] + "/{" + ",".join(path.rsplit("/", 1)[1] for path in files) + "}"
    with tempfile.TemporaryDirectory() as scratch:
        made = session.Session(scratch)
        made.query(
            f"""SELECT toStartOfHour(event_time) AS bucket, tupleElement(event, 'url') AS url, count() AS hits,
                uniqHLL12State(tupleElement(event, 'user_id')) AS users, sum(tupleElement(event, 'ms')) AS ms,
                quantilesDDState(0.01, {shares})(assumeNotNull(tupleElement(event, 'ms'))) AS latency
                FROM file('{name}', Parquet) GROUP BY bucket, url
                INTO OUTFILE '{out / "chdb.native"}' TRUNCATE FORMAT Native SETTINGS max_threads = 2"""
        )
        made.close()


class ChildFailed(Exception):
    """A peer did not get through, for want of memory perhaps."""


def in_child(way: Callable[[list[str], Path], None], files: list[str], out: Path) -> None:
    """Run in a process of its own, whose memory is then its own too."""
    child = multiprocessing.get_context("spawn").Process(target=way, args=(files, out))
    child.start()
    child.join()
    if child.exitcode:
        raise ChildFailed(f"{way.__name__} ended with {child.exitcode}")


def write(
    machine: dict[str, str], full: dict[str, Measured], more: dict[str, Measured], events: int, memory: str
) -> None:
    """The result as figures and as text."""
    medians = {name: statistics.median(found.seconds) for name, found in full.items() if found.seconds}
    by_hand = medians["PySpark by hand"]
    rows = [
        (
            name,
            f"{events / took:,.0f}",
            f"{min(full[name].seconds):.1f} – {max(full[name].seconds):.1f} s",
            f"{by_hand / took:.2f}",
            f"{full[name].peak_mb:,.0f} MB",
        )
        for name, took in medians.items()
    ]
    rows += [
        (name, "did not get through", "", "", f"more than {DUCKDB_BYTES / 2**30:.0f} GB")
        for name in full
        if name not in medians
    ]
    text = report.table(("", "events/s, median", "least – most", "of by hand", "peak memory"), *rows)
    text += (
        f"\n\n{events:,} events of the master table, per hour and url; Spark with {memory} of memory. DuckDB keeps "
        "values that cannot be merged any further. The aim: the view at least 0.90 of PySpark by hand. Reading is "
        f"{medians[READING] / medians['Tidemark, the view']:.0%} of the view's time: so much one pass for all views "
        "of a source could spare each of them but one.\n\n"
    )
    after = {name: report.median(found.seconds) for name, found in more.items()}
    many, few = (after[name]["median"] for name in after)
    text += report.table(
        ("a run that goes on", "time", "peak memory"),
        *((name, report.seconds(after[name]), f"{found.peak_mb:,.0f} MB") for name, found in more.items()),
    )
    text += f"\n\nAfter many old events it takes {many / few:.2f} times as long as after few."
    figures = {
        "machine": machine,
        "seconds": {name: found.seconds for name, found in (full | more).items()},
        "share_of_by_hand": by_hand / medians["Tidemark, the view"],
        "many_over_few": many / few,
    }
    report.write("batch", "Batch layer: the reference view", figures, text)


if __name__ == "__main__":
    main()
