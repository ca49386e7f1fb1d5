"""Where the time of batch runs goes: each phase of a run with its seconds and its Spark jobs.

    python benchmarks/profile_run.py [--only small] [--write]

Each run is that of a new process, like `tidemark batch run` (cold); then the same again in one process (warm):

    small       20,000 events, four views: the first run
    continued   40 more events
    year        a sparse year: 366 days, 35 keys, two views with 15 and 4 answers, about 190,000 groups
    year more   40 more events, of one day

`--write` keeps the figures in benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import report
from pyspark.sql import SparkSession

from batch_layer.run import run_batch
from batch_layer.timeline import Timeline
from infra.settings import Settings, load_settings
from infra.spark.session import spark_session
from master_dataset.table.append import append, commit_lock, create_table
from master_dataset.table.paths import table_path
from master_dataset.table.proofs import Kind, Proof
from views.declarations import declared_by
from views.on_spark.events import with_event

FIELDS = 'fields="event_id string, event_time timestamp, url string, user_id string, ms double, bytes int"'
DECLARED = f"""
from views.aggregates import *
from views.aggregates import Variance, StdDev
from views.source import Source
from views.view import View

small = Source("small", {FIELDS})
pages = View("pages", source=small, grain="1h", keys={{"url": "url"}},
    answers={{"hits": Count(), "users": Distinct("user_id")}})
times = View("times", source=small, grain="1h", keys={{"url": "url"}},
    answers={{"ms": Sum("ms"), "latency": Quantiles("ms")}})
totals = View("totals", source=small, grain="1d", answers={{"events": Count(), "bytes": Sum("bytes")}})
users = View("users", source=small, grain="1d", keys={{"user_id": "user_id"}},
    answers={{"events": Count(), "last": Last("url")}})

year = Source("year", {FIELDS})
wide = View("wide", source=year, grain="1h", keys={{"url": "url"}}, answers={{
    "hits": Count(), "large": Count(where="bytes > 500"), "bytes": Sum("bytes"), "ms": Sum("ms"), "mean": Average("ms"),
    "users": Distinct("user_id"), "latency": Quantiles("ms"), "top": TopK("user_id", k=3), "least": Min("ms"),
    "most": Max("ms"), "first": First("user_id"), "last": Last("user_id"), "spread": Variance("bytes"),
    "deviation": StdDev("ms"), "sizes": Histogram("bytes", bounds=(100, 500, 900)),
}})
daily = View("daily", source=year, grain="1d", keys={{"url": "url"}}, answers={{
    "hits": Count(), "bytes": Sum("bytes"), "users": Distinct("user_id"), "ms": Sum("ms"),
}})
"""
SIZES = {"small": 20_000, "year": 340_000}
DAYS = {"small": 3, "year": 366}
URLS = {"small": 50, "year": 35}
STEPS = (("small", False), ("small", True), ("year", False), ("year", True))
NAMES = {("small", False): "small", ("small", True): "continued", ("year", False): "year", ("year", True): "year more"}

WHAT = {
    "small": "`small` is a first run over 20,000 events with four views.",
    "continued": "`continued` is one over 40 more.",
    "year": "`year` is one over a sparse year of 366 days with two views.",
    "year more": "`year more` is one over 40 more events, of one day.",
}


def main() -> None:
    """Run all of it, or one run of a source in this process."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", choices=SIZES, action="append")
    arguments.add_argument("--write", action="store_true")
    arguments.add_argument("--before", type=Path, help="what another version printed, for the page")
    arguments.add_argument("--cold-only", action="store_true")
    arguments.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    arguments.add_argument("--step", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.step:
        print(json.dumps(do(given.home, given.step)))
        return
    sources = given.only or [*SIZES]
    found: dict[str, Any] = {}
    for how in ("cold", "warm")[: 1 if given.cold_only else 2]:
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            (home / "views").mkdir()
            (home / "views" / "made.py").write_text(DECLARED)
            steps = [(source, is_more) for source, is_more in STEPS if source in sources]
            if how == "warm":
                found["warm"] = in_process(home, f"warm {json.dumps(steps)}")
                continue
            found["cold"] = {}
            for source, is_more in steps:
                in_process(home, f"fill {json.dumps([source, is_more])}")
                found["cold"][NAMES[source, is_more]] = in_process(home, f"run {source}")
    print(json.dumps(found, indent=1))
    if given.write:
        write(found, json.loads(given.before.read_text()) if given.before else {})


def in_process(home: Path, step: str) -> Any:
    """Do a step in a process of its own."""
    command = [sys.executable, __file__, "--home", str(home), "--step", step]
    begin = time.monotonic()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = {**json.loads(done.stdout.splitlines()[-1]), "process": round(time.monotonic() - begin, 1)}
    sys.stderr.write(f"{step}: {json.dumps(found)}\n")
    return found


def do(home: Path, step: str) -> dict[str, Any]:
    """Fill, run, or both by turns in one session."""
    verb, _, what = step.partition(" ")
    settings = load_settings(home=home / "home", views_dir=home / "views", with_examples=False)
    settings.home.mkdir(exist_ok=True)
    if verb == "run":
        return timed_run(settings, what, None)
    spark = spark_session(settings, "profile", output=home / "spark.log")
    if verb == "fill":
        source, is_more = json.loads(what)
        fill(spark, settings, source, is_more=is_more)
        return {}
    found = {}
    for source, is_more in [*json.loads(what), *json.loads(what)]:  # the second time everything is compiled
        fill(spark, settings, source, is_more=is_more)
        found[NAMES[source, is_more]] = timed_run(settings, source, spark, full=not is_more)
    return found


def timed_run(settings: Settings, source: str, spark: SparkSession | None, **options: Any) -> dict[str, Any]:
    """A run, and its timeline: also what comes after the manifest."""
    timeline, begin, before = Timeline(), time.monotonic(), 0.0 if spark is None else processor_seconds()
    manifest = run_batch(settings, source, spark=spark, timeline=timeline, **options)
    return {
        "seconds": round(time.monotonic() - begin, 2),
        "processor": round(processor_seconds() - before, 2),
        "kind": manifest.kind,
        "rows": manifest.rows,
        "files": sum(len(view.files) for view in manifest.views),
        "phases": [(each.name, round(each.seconds, 2), each.jobs) for each in timeline.phases],
    }


def processor_seconds() -> float:
    """What this process, with its imports, and its descendants took so far: also a busy machine gives the same."""
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def fill(spark: SparkSession, settings: Settings, source: str, *, is_more: bool) -> None:
    """Append the events of a source, or 40 more of one day."""
    declared = declared_by(settings).source(source)
    table = table_path(settings, source)
    if not table.exists():
        create_table(spark, table, declared)
    from master_dataset.table.coverage import of

    start = of(table).cut.get(0, 0)
    count = 40 if is_more else SIZES[source]
    seconds = DAYS[source] * 86_400
    at = f"{seconds} - 43200 - pmod(id, 3600)" if is_more else f"pmod(id * 7919 * 61, {seconds})"
    value = f"""to_json(struct(
        concat('e', cast(id as string)) as event_id,
        timestamp_seconds(1767225600 + {at}) as event_time,
        concat('/page/', cast(pmod(hash(id), {URLS[source]}) as string)) as url,
        concat('u', cast(pmod(hash(id, 1), 500) as string)) as user_id,
        pmod(hash(id, 2), 10000) / 10.0 as ms, pmod(hash(id, 3), 1000) as bytes))"""
    rows = spark.range(start, start + count, 1, 2).selectExpr(
        f"'{source}' as topic", "0 as partition", "id as offset", "timestamp_seconds(1767225600) as timestamp",
        "0 as timestampType", "cast(null as binary) as key", f"cast({value} as binary) as value",
        "cast(null as array<struct<key:string,value:binary>>) as headers",
    )  # fmt: skip
    proof = Proof(Kind.APPEND, source, "profile", start={0: start}, end={0: start + count})
    with commit_lock(table):
        append(spark, table, with_event(rows, declared), proof)


def write(found: dict[str, Any], before: dict[str, Any]) -> None:
    """Into benchmarks/results, and the page."""
    rows = [("run", "whole process", "of it the run", "processor time", "Spark jobs", "files")]
    for label, measured in (("", found["cold"]), (" (version before)", before.get("cold", {}))):
        for name, run in measured.items():
            jobs = sum(jobs for _, _, jobs in run["phases"])
            rows.append((
                f"{name}{label}", f"{run['process']:.1f} s", f"{run['seconds']:.1f} s",
                f"{run['processor']:.1f} s" if "processor" in run else "", str(jobs), str(run["files"]),
            ))  # fmt: skip
    text = (
        "Each run is a process of its own, as `tidemark batch run` is: the start of Python and of Spark is in it. "
        f"{' '.join(WHAT[name] for name in found['cold'])}\n\n{report.table(*rows)}"
    )
    report.write("runs", "Batch runs, small and sparse", {**found, "before": before}, text)


if __name__ == "__main__":
    main()
