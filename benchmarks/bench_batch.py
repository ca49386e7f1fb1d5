"""The reference view over a master table, beside the same view by hand in PySpark, DuckDB and ClickHouse, in one run.

    python benchmarks/bench_batch.py [--events 10000000] [--rounds 3] [--memory 1g] [--home FOLDER] [--no-continued]

Per hour and url: count, distinct users, sum and quantiles of ms. All read the same Parquet files of the master table.
The rounds take turns; the first one warms up and is not counted. Then a run that goes on from another is measured:
one million new events after many old ones, and after few. With `--home` the master table is kept for the next time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import report
from pyspark.sql import DataFrame, SparkSession
from reference_view import DECLARED

from batch_layer.run import run_batch
from batch_layer.tables import write_files
from batch_layer.timeline import Timeline
from hand_off.manifests import Phase
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
DUCKDB_MEMORY = "8GB"
"""What DuckDB may hold in memory. It spills the rest to disk, apart from sketches, which it cannot spill."""
MAX_CHILD_BYTES = 12 * 2**30
"""An engine that takes more is ended: others use the machine too."""
MAX_CHILD_S = 300.0
SHOWN_S = 0.1
"""Shorter phases are not on the page."""
READING = "reading its columns alone"
RUN, BY_HAND = "Tidemark, a whole run", "PySpark by hand"
PEERS = {
    "ClickHouse (chdb), its best states": "uniqCombined, t-digest",
    "ClickHouse (chdb), states like ours": "HyperLogLog of 12 bits, DDSketch",
    "DuckDB, values only": "spilling allowed; nothing can be merged later",
    "DuckDB, values only, a day at a time": "the same with less memory; it reads the days one by one",
}
"""What each peer keeps."""
WARMING = ("Tidemark, the view", BY_HAND)
"""What the first round, which is not counted, runs: after them the JVM is warm for the others too."""


def main() -> None:
    """Measure, and write the result and the page."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--events", type=int, default=10_000_000)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--memory", default="1g", help="of Spark's JVM, which does the work on one machine")
    arguments.add_argument("--home", type=Path, help="keep the master table here, and use it if it is there")
    arguments.add_argument("--no-continued", action="store_true", help="without the runs that go on from another")
    given = arguments.parse_args()
    machine = report.machine()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "views").mkdir()
        (place / "views" / "hits.py").write_text(DECLARED)
        settings = load_settings(
            home=given.home or place / "home", views_dir=place / "views", with_examples=False,
            spark_driver_memory=given.memory,
        )  # fmt: skip
        spark = spark_session(settings, "bench-batch")
        bench = Bench(spark, settings, place)
        if not bench.table.is_dir():
            bench.fill(0, given.events)
        full = bench.contest(given.rounds) if given.rounds else {}
        timelines = list(bench.timelines)
        more = bench.go_on(given.events) if given.rounds and not given.no_continued else {}
        spark.stop()
    if full:
        write(machine, full, more, timelines, given)


@dataclass
class Measured:
    """Seconds of each round, and the most memory of any."""

    seconds: list[float]
    peak_mb: float = 0.0
    failure: str = ""


@dataclass
class Bench:
    """A master table and everybody who computes the view from it."""

    spark: SparkSession
    settings: Settings
    place: Path
    timelines: list[list[Phase]] = field(default_factory=list)
    """The phases of each whole run, in the order of the runs."""

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
            BY_HAND: lambda: self.by_hand(self.events(), out),
            RUN: lambda: self.whole_run(full=True),
            "PySpark by hand, duplicates removed": lambda: self.by_hand(
                self.events().dropDuplicates(["event_id"]), out
            ),
            READING: self.reading,
            **{name: partial(in_child, way, files, out) for name, way in zip(PEERS, ENGINES, strict=True)},
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
                        found[name].failure = str(error)
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
        timeline = Timeline()
        run_batch(self.settings, "hits", full=full, spark=self.spark, timeline=timeline)
        self.timelines.append(timeline.phases)


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
    engine = _duckdb(out)
    engine.sql(f"COPY ({_duckdb_query(files)}) TO '{out / 'duckdb.parquet'}' (FORMAT parquet, COMPRESSION zstd)")


def by_duckdb_days(files: list[str], out: Path) -> None:
    """The same day by day: no hour belongs to two days, so no group does."""
    engine = _duckdb(out)
    days = engine.sql(f"SELECT DISTINCT event_time::date FROM read_parquet({files}) ORDER BY 1").fetchall()
    for number, (day,) in enumerate(days):
        query = _duckdb_query(files, f"WHERE event_time >= '{day}' AND event_time < DATE '{day}' + INTERVAL 1 DAY")
        engine.sql(f"COPY ({query}) TO '{out / f'duckdb_{number}.parquet'}' (FORMAT parquet, COMPRESSION zstd)")


def _duckdb(out: Path) -> Any:
    import duckdb

    engine = duckdb.connect()
    engine.sql("SET threads = 2")
    engine.sql("SET TimeZone = 'UTC'")
    engine.sql("SET preserve_insertion_order = false")
    engine.sql(f"SET memory_limit = '{DUCKDB_MEMORY}'")
    engine.sql(f"SET temp_directory = '{out / 'duckdb_scratch'}'")
    return engine


def _duckdb_query(files: list[str], where: str = "") -> str:
    return f"""SELECT date_trunc('hour', event_time) AS bucket, event.url AS url, count(*) AS hits,
        approx_count_distinct(event.user_id) AS users, sum(event.ms) AS ms,
        approx_quantile(event.ms, {list(QUANTILES)}) AS latency
        FROM read_parquet({files}) {where} GROUP BY 1, 2"""


def by_chdb(files: list[str], out: Path) -> None:
    """ClickHouse's mergeable states, those that it computes fastest."""
    _chdb(files, out, "uniqCombinedState", "quantilesTDigestState")


def by_chdb_like_ours(files: list[str], out: Path) -> None:
    """ClickHouse's mergeable states that are most like ours."""
    _chdb(files, out, "uniqHLL12State", "quantilesDDState", "0.01, ")


def _chdb(files: list[str], out: Path, distinct: str, quantiles: str, accuracy: str = "") -> None:
    from chdb import session

    shares = accuracy + ", ".join(map(str, QUANTILES))
    name = files[0].rsplit("/", 1)[0] + "/{" + ",".join(path.rsplit("/", 1)[1] for path in files) + "}"
    with tempfile.TemporaryDirectory() as scratch:
        made = session.Session(scratch)
        made.query(
            f"""SELECT toStartOfHour(event_time) AS bucket, tupleElement(event, 'url') AS url, count() AS hits,
                {distinct}(tupleElement(event, 'user_id')) AS users, sum(tupleElement(event, 'ms')) AS ms,
                {quantiles}({shares})(assumeNotNull(tupleElement(event, 'ms'))) AS latency
                FROM file('{name}', Parquet) GROUP BY bucket, url
                INTO OUTFILE '{out / "chdb.native"}' TRUNCATE FORMAT Native SETTINGS max_threads = 2"""
        )
        made.close()


ENGINES: tuple[Callable[[list[str], Path], None], ...] = (by_chdb, by_chdb_like_ours, by_duckdb, by_duckdb_days)
"""In the order of PEERS."""


class ChildFailed(Exception):
    """A peer did not get through, for want of memory perhaps."""


def in_child(way: Callable[[list[str], Path], None], files: list[str], out: Path) -> None:
    """Run in a process of its own, whose memory is then its own too. Memory and time are bounded."""
    deadline = time.monotonic() + MAX_CHILD_S
    child = multiprocessing.get_context("spawn").Process(target=way, args=(files, out))
    child.start()
    while child.is_alive():
        child.join(0.1)
        failure = f"took longer than {MAX_CHILD_S:.0f} s" if time.monotonic() > deadline else ""
        with suppress(psutil.Error):
            if psutil.Process(child.pid).memory_info().rss > MAX_CHILD_BYTES:
                failure = f"took more than {MAX_CHILD_BYTES / 2**30:.0f} GB of memory"
        if failure:
            child.kill()
            child.join()
            raise ChildFailed(failure)
    if child.exitcode:
        raise ChildFailed(f"ended with {child.exitcode}")


def write(
    machine: dict[str, str],
    full: dict[str, Measured],
    more: dict[str, Measured],
    timelines: list[list[Phase]],
    given: argparse.Namespace,
) -> None:
    """The result as figures and as text."""
    events = given.events
    medians = {name: statistics.median(found.seconds) for name, found in full.items() if found.seconds}
    rows = [
        (
            f"{name}: {PEERS[name]}" if name in PEERS else name,
            f"{events / took:,.0f}",
            f"{min(full[name].seconds):.1f} – {max(full[name].seconds):.1f} s",
            f"{medians[RUN] / took:.2f}",
            f"{full[name].peak_mb:,.0f} MB",
        )
        for name, took in medians.items()
    ]
    rows += [(name, full[name].failure, "", "", "") for name in full if name not in medians]
    text = report.table(("", "events/s, median", "least – most", "times as fast as our run", "peak memory"), *rows)
    removed = medians["PySpark by hand, duplicates removed"]
    text += (
        f"\n\n{events:,} events of the master table, per hour and url; Spark with {given.memory} of memory; "
        f"{given.rounds} rounds in turns. A whole run removes duplicates, reads its files back, builds the read index "
        f"and publishes; no peer does. It takes {medians[RUN] / removed:.2f} times as long as PySpark by hand with "
        f"duplicates removed (the aim: 1.25). {slower(medians)} The view alone goes at "
        f"{medians[BY_HAND] / medians['Tidemark, the view']:.2f} of PySpark by hand (the aim: 0.90). Reading is "
        f"{medians[READING] / medians['Tidemark, the view']:.0%} of the view's time: so much one pass for all views "
        "of a source could spare each of them but one."
    )
    figures: dict[str, Any] = {
        "machine": machine | report.load_now(),
        "events": events,
        "seconds": {name: found.seconds for name, found in (full | more).items()},
        "share_of_by_hand": medians[BY_HAND] / medians["Tidemark, the view"],
        "timelines": [[asdict(phase) for phase in phases] for phases in timelines],
    }
    text += "\n\n" + by_phase(timelines)
    if more:
        text += "\n\n" + continued(more)
    report.write("batch", "Batch layer: the reference view", figures, text)


def slower(medians: dict[str, float]) -> str:
    """Which peers are faster than a whole run, said plainly."""
    found = [
        f"{name} is {medians[RUN] / medians[name]:.1f} times as fast"
        for name in PEERS
        if name in medians and medians[name] < medians[RUN]
    ]
    return f"Tidemark is behind here: {'; '.join(found)}." if found else "No peer was faster than the whole run."


def by_phase(timelines: list[list[Phase]]) -> str:
    """Where the time of the whole run goes, as text."""
    spent: dict[str, list[float]] = {}
    jobs: dict[str, int] = {}
    for phases in timelines:
        sums: dict[str, float] = {}
        for phase in phases:
            sums[phase.name] = sums.get(phase.name, 0.0) + phase.seconds
            jobs[phase.name] = max(jobs.get(phase.name, 0), phase.jobs)
        for name, seconds in sums.items():
            spent.setdefault(name, []).append(seconds)
    medians = {name: statistics.median(seconds) for name, seconds in spent.items()}
    whole = sum(medians.values())
    rows = [
        (
            name, f"{medians[name]:.1f} s", f"{min(seconds):.1f} – {max(seconds):.1f} s",
            f"{medians[name] / whole:.0%}", str(jobs[name]),
        )
        for name, seconds in spent.items()
        if medians[name] >= SHOWN_S
    ]  # fmt: skip
    table = report.table(("phase of the whole run", "median", "least – most", "of all phases", "Spark jobs"), *rows)
    return f"{table}\n\nPhases of less than {SHOWN_S:g} s are left out. Reading files back is part of `compute`."


def continued(more: dict[str, Measured]) -> str:
    """The runs that go on from another, as text."""
    after = {name: report.median(found.seconds) for name, found in more.items()}
    many, few = (each["median"] for each in after.values())
    table = report.table(
        ("a run that goes on", "time", "peak memory"),
        *((name, report.seconds(after[name]), f"{found.peak_mb:,.0f} MB") for name, found in more.items()),
    )
    return f"{table}\n\nAfter many old events it takes {many / few:.2f} times as long as after few."


if __name__ == "__main__":
    main()
