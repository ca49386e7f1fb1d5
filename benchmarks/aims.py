"""What was slow when a new user tried Tidemark with a year of real history, what it takes now, and what was aimed at.

The figures of before were measured once, on two cores. Those of now are read from the newest results, each of the run
that the section of its benchmark describes. Of a miss the page says what was tried.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

Results = dict[str, dict[str, Any]]
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Now:
    """A figure of now, and whether the aim is met; a row with two figures is met if both are."""

    text: str
    is_met: bool


@dataclass(frozen=True)
class Aim:
    """A row of the table."""

    what: str
    before: str
    aim: str
    now: Callable[[Results], Now]
    tried: str
    """What was tried; it is shown while the aim is missed."""


def section(results: Results) -> str:
    """The table, as markdown."""
    head = "| what | before | now | aim | if missed: what was tried |\n|---|---|---|---|---|"
    return "\n".join([
        "## What was slow, and what was aimed at\n",
        "`before` is what a new user measured on two cores with 336,776 real flights of a year. `now` is the newest "
        "figure of the sections below, of generated data of that shape; machines and days differ, so a ratio says more "
        "than a rate.\n",
        head,
        *(_row(each, _now(each, results)) for each in AIMS),
    ]) + "\n"  # fmt: skip


def _row(aim: Aim, now: Now | None) -> str:
    tried = "" if now is not None and now.is_met else aim.tried
    return f"| {aim.what} | {aim.before} | {NOT_MEASURED if now is None else now.text} | {aim.aim} | {tried} |"


def _now(aim: Aim, results: Results) -> Now | None:
    """None where a result is missing, or is of before the figure was measured."""
    with suppress(LookupError, TypeError, ValueError, ZeroDivisionError, StopIteration):
        return aim.now(results)
    return None


def _import(results: Results) -> Now:
    took = list(results["history"]["measured"].values())[-1]["complete_s"]
    return Now(f"{took:.0f} s", took <= 60)


def _two_keys(results: Results) -> Now:
    (name,) = (name for name in results["wide"]["scenarios"] if name.startswith("a year"))
    asked = results["wide"]["scenarios"][name]["by two keys"]
    if "refused" in asked:
        return Now(f"refused: {asked['refused']}", is_met=False)
    return Now(f"answered in {asked['median']:,.0f} ms ({asked['first']:,.0f} ms the first time)", is_met=True)


def _small_runs(results: Results) -> Now:
    cold = results["runs"]["cold"]
    small, continued = cold["small"]["process"], cold["continued"]["process"]
    return Now(f"{small:.1f} s / {continued:.1f} s", max(small, continued) <= 12)


def _changed_day(results: Results) -> Now:
    """The year's run beside one of as many events and groups over few days."""
    slopes = results["days"]["slopes_s"].values()
    return Now(f"{' and '.join(f'{each:.3f}' for each in slopes)} s in two views", max(slopes) <= 0.01)


def _index(results: Results) -> Now:
    built = results["index"]["built"]
    rate = built["groups"] / built["seconds"]
    return Now(f"{rate:,.0f} groups/s", rate >= 100_000)


def _ten_million(results: Results) -> Now:
    seconds = results["batch"]["seconds"]
    ours, by_hand = seconds["Tidemark, a whole run"], seconds["PySpark by hand, duplicates removed"]
    times = statistics.median(ours) / statistics.median(by_hand)
    return Now(f"{times:.2f} times", times <= 1.25)


def _wide(results: Results) -> Now:
    urls = f"{results['wide']['urls']:,} urls"
    of = {
        name.partition(":")[0]: asked["top 10 by hits"]
        for name, asked in results["wide"]["scenarios"].items()
        if urls in name
    }
    before, after = of["before the run"], of["after the run"]
    return Now(
        f"{before['median']:,.0f} ms ({before['first']:,.0f} the first time); after the run {after['median']:,.1f} ms",
        max(before["median"], after["median"]) <= 50,
    )


def _one_key(results: Results) -> Now:
    floor, one = list(results["serving"]["contest"].values())[:2]
    times = one["1"]["p50_ms"]["median"] / floor["1"]["p50_ms"]["median"]
    rate = one["16"]["rate"]["median"]
    return Now(f"{times:.1f} times; {rate:,.0f} requests/s", times <= 3 and rate >= 1000)


def _top(results: Results) -> Now:
    name = next(name for name in results["serving"]["contest"] if name.startswith("top 10"))
    usual = results["serving"]["contest"][name]["1"]["p50_ms"]["median"]
    later = results["serving"]["after_a_day"][name]
    p50, p99 = later["p50_ms"]["median"], later["p99_ms"]["median"]
    return Now(f"{usual:.1f} ms / {p50:,.0f} ms, p99 {p99:,.0f} ms", usual <= 5 and p50 <= 20 and p99 <= 100)


def _collector(results: Results) -> Now:
    share, rate = (results["collector"][name] for name in ("share_of_bare_confluent", "single_rate_16_connections"))
    return Now(f"{share:.2f} / {rate:,} events/s", share >= 0.40 and rate >= 4000)


def _archiver(results: Results) -> Now:
    share = results["archiver"]["share_of_floor"]
    usual = results["archiver"].get("usual_share_of_floor")  # not in results of before
    if usual is None:
        return Now(f"{share:.2f}", share >= 0.40)
    return Now(f"{share:.2f}; with commits of the usual sizes {usual:.2f}", min(share, usual) >= 0.40)


def _held(results: Results) -> Now:
    held, size = results["speed"]["held"], results["speed"]["bytes_per_state"]
    rate = NOT_MEASURED if held is None else f"{held:,} events/s"
    return Now(f"{rate} / {size:,.0f}", (held or 0) >= 40_000 and size <= 600)


def _latency(results: Results) -> Now:
    ours, plain, *_ = results["speed"]["latency_ms"].values()
    p50, p99 = ours["500"]
    share = p50 / plain["500"][0]
    return Now(f"{p50:.0f} / {p99:.0f} ms; {share:.2f} of the plain job's p50", p50 <= 100 and p99 <= 200)


def _idle(results: Results) -> Now:
    cores = sum(results["startup"]["idle_cores"].values())
    memory = sum(results["startup"]["whole_idle_memory_mb"].values()) / 1000
    return Now(f"{cores:.2f} cores, {memory:.1f} GB", cores <= 0.10 and memory <= 1.8)


def _up(results: Results) -> Now:
    took = results["startup"]["whole_up_s"]["median"]
    return Now(f"{took:.1f} s", took <= 12)


AIMS = (
    Aim(
        "import of a year until a complete answer over all of it", "about 8 min", "60 s", _import,
        "The run starts while the import still sends, and the speed layer jumps to its cut (overtake); states are "
        "merged in columns; CSV cells are converted once. Half of the time passes until the archiver has every row, a "
        "fifth is the search for duplicates.",
    ),
    Aim(
        "group by two keys over the year, before the next run", "422: more than 100,000 speed states", "answered",
        _two_keys, "Reads in parts at one cut, up to `serving_max_speed_states` (decision 30).",
    ),
    Aim(
        "`tidemark batch run`, 20,000 events, 4 views / 40 new events", "34 s / 40 s", "12 s", _small_runs,
        "One or two Spark jobs, folded by the driver; a JVM that does not optimize; an archive of its classes.",
    ),
    Aim(
        "one more changed day, per view", "0.17 s", "0.01 s", _changed_day,
        "The index is built in columns and the Delta log is written without Spark. Files over ranges of days were "
        "weighed and not built: a late event would rewrite a whole range (decision 27).",
    ),
    Aim(
        "index of a batch view, built on two cores", "13,700 groups/s", "100,000 groups/s", _index,
        "States are merged many at a time in columns, days with few groups together, and two processes share the days. "
        "A third of the processor time merges the sketches of distinct values into tiles.",
    ),
    Aim(
        "a run of 10 M events (1 GB heap) against Spark by hand with duplicates removed", "1.64 times", "1.25 times",
        _ten_million,
        "One pass for all views would spare at most the reading, 6 % of a view's time; the rest is the check of what "
        "was written, the read index and the publication, which the other does not have.",
    ),
    Aim(
        "150,000 distinct urls in the current hour: top 10 by url", "422; after the run 1.7–2.1 s",
        "50 ms, before and after", _wide,
        "Ranks that end at a number and a key, reads in parts at one cut, and numbers that a process follows "
        "(decision 15).",
    ),
    Aim(
        "one key, 30 days by day, against a constant route that reads Redis", "11 times; 293 requests/s",
        "3 times; 1,000 requests/s", _one_key,
        "Plans and proved keys are cached, repeated queries are answered on the event loop, and rows are kept as "
        "they are written. In process a repeated query costs 1.2 times the constant route; with a writer that is "
        "busy all the time, presented answers are made again for each micro-batch.",
    ),
    Aim(
        "top 10 of 10,000 keys, 24 h / after a day without a run", "6.8 ms / 60 ms, p99 2.6 s",
        "5 ms / 20 ms, p99 100 ms", _top,
        "Ranks in Redis (one read in most cases), then numbers that a process follows by what has changed since the "
        "last query (decision 15).",
    ),
    Aim(
        "collector, batches of 500, of bare confluent-kafka / single events at 16 connections",
        "0.22 / 1,093 events/s", "0.40 / 4,000 events/s", _collector,
        "Events are written for Kafka once, handed over as a batch, and single ones go a short way past the router. "
        "msgspec was measured (`json_columns.py`): its typed decoder takes 0.33 µs where the strict parser and the "
        "validator take 2.9, but it accepts a repeated key. The strict look stays, which also splits a batch into "
        "records; msgspec could take the validator's place alone, about 1.2 of 9.1 µs an event, with rules of its own "
        "that would have to agree with those of every layer.",
    ),
    Aim(
        "archiver against Spark into `noop`", "0.19", "0.40", _archiver,
        "It is one pass already. Parsing and judging alone go at 0.36 of the floor, below the aim, and every layer "
        "has to judge alike; other ways from JSON to columns would not (decision 31). The rest is hashing, Parquet, "
        "statistics, `fsync` and the commit.",
    ),
    Aim(
        "highest rate held for 60 s / Redis bytes a state (reference view)", "10,000–30,000 events/s / 2,393",
        "40,000 events/s / 600", _held,
        "Micro-batches grow with the backlog; quantiles take a quarter of the bytes that they took. The order of keys "
        "by a number takes about 110 bytes for each state and ranked answer, and spares a top 10 from reading all "
        "states (decision 15).",
    ),
    Aim(
        "latency at 500 events/s, p50 / p99", "134 / 266 ms; 0.42 of the plain job's p50", "100 / 200 ms", _latency,
        "Small micro-batches are interpreted instead of compiled and their states kept in memory. The plain job took "
        "318 ms in the run of before, so the share of it says more than the milliseconds of other days. Of 109 ms of a "
        "micro-batch 101 are Spark's: its plan, its job, and the commit of its offsets.",
    ),
    Aim(
        "idle stack", "0.44 cores, 2.4 GB", "0.10 cores, 1.8 GB", _idle,
        "Spark asks Kafka less often the longer nothing came; status files are written when something changes. Three "
        "JVMs hold most of the memory: Kafka, the archiver, the speed layer.",
    ),
    Aim(
        "`tidemark up` until all are ready, warm", "20–30 s", "12 s", _up,
        "A service starts as soon as those that it needs are ready, and JVMs take their classes from an archive "
        "(decision 16). Two sessions of Spark, of the archiver and of the speed layer, start side by side on two "
        "cores.",
    ),
)  # fmt: skip
"""In the order in which they were set."""
