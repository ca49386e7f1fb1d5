"""From a CSV file with a year of history until every answer holds it: the stack is up, and `tidemark import` is typed.

    python benchmarks/bench_history.py [--events 336776] [--label after]

The file has the shape of a year of flights: 19 columns, hourly, 35 pairs of origin and carrier, some rows late and some
twice. Two views with 15 answers have about 0.7 states for each event. The phases overlap; each is the time from the
first line that was sent until the phase was over. Beside it stand two floors of the same file and machine: DuckDB
aggregates it, and bare confluent-kafka sends it.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import history_floors
import report

from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.manifests import Manifest, read_manifest
from hand_off.speed_views import SpeedViews
from infra.clients.redis import redis_client
from infra.settings import Settings, child_environment, load_settings
from infra.stack.addresses import addresses
from master_dataset.archiver.commit_request import ask_for_commit
from master_dataset.table import coverage
from master_dataset.table.paths import table_path

TIDEMARK = [sys.executable, "-P", "-m", "tidemark"]
EVENTS, WARM = 336_776, 500
AIM_S = 60
LOOK_S = 0.25
GIVE_UP_S = 1_800
YEAR = datetime(2025, 1, 1, tzinfo=UTC)
LATE_SHARE, TWICE_SHARE = 0.02, 0.01
NUMBERS = ("dep_delay", "arr_delay", "air_time", "distance")
PHASES = {
    "sent: Kafka has every row": "sent", "archived: the master dataset has every row": "archived",
    "complete: the answers have every row": "complete",
}  # fmt: skip
COLUMNS = (
    "flight_id", "event_time", "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time",
    "sched_arr_time", "arr_delay", "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour",
)  # fmt: skip
DECLARED = """
from tidemark import Average, Count, Distinct, Max, Min, Quantiles, Ratio, Source, Sum, View

flights = Source(
    "flights", id_field="flight_id",
    fields="flight_id string, event_time timestamp, year int, month int, day int, dep_time int, sched_dep_time int, "
    "dep_delay double, arr_time int, sched_arr_time int, arr_delay double, carrier string, flight int, "
    "tailnum string, origin string, dest string, air_time double, distance double, hour int",
)
carriers = View(
    "carriers", source=flights, grain="1h", keys={"origin": "origin", "carrier": "carrier"},
    answers={
        "flights": Count(), "cancelled": Count(where="dep_delay is null"), "cancelled_share": Ratio("cancelled", "flights"),
        "planes": Distinct("tailnum"), "delay": Average("dep_delay"), "worst": Max("arr_delay"),
        "delays": Quantiles("arr_delay"), "miles": Sum("distance"),
    },
)
origins = View(
    "origins", source=flights, grain="1h", keys={"origin": "origin"},
    answers={
        "flights": Count(), "late": Count(where="arr_delay > 15"), "late_share": Ratio("late", "flights"),
        "places": Distinct("dest"), "shortest": Min("air_time"), "longest": Max("air_time"), "air": Sum("air_time"),
    },
)
"""  # noqa: E501  as people write it
PAIRS = [
    (origin, carrier)
    for origin, carriers in (
        ("EWR", ("UA", "EV", "B6", "WN", "AA", "DL", "US", "MQ", "VX", "AS", "9E", "OO")),
        ("JFK", ("B6", "DL", "9E", "AA", "MQ", "UA", "VX", "US", "EV", "HA", "OO", "YV")),
        ("LGA", ("DL", "MQ", "EV", "US", "AA", "UA", "B6", "WN", "FL", "9E", "F9")),
    )
    for carrier in carriers
]


def main() -> None:
    """Measure, and write the result and the page."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--events", type=int, default=EVENTS, help="rows of the file, before those that come twice")
    arguments.add_argument("--label", default="after", help="name of this measurement in the result")
    given = arguments.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that the stack is taken down
    path = report.RESULTS / "history.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["measured"] if path.is_file() else {}
    with tempfile.TemporaryDirectory() as folder:
        kept[given.label] = measure(Path(folder), given.events)
    report.write("history", "A year of history", {"measured": kept, "aim_s": AIM_S}, text(kept))


def text(measured: dict[str, dict[str, Any]]) -> str:
    """The result as the page shows it."""
    rows = [
        (
            label, f"{each['events']:,}", f"{each['sent_s']:.0f} s", f"{each['archived_s']:.0f} s",
            " + ".join(f"{run:.0f} s" for run in each["runs_s"]) or "none",
            f"{each['complete_s']:.0f} s",
        )
        for label, each in measured.items()
    ]  # fmt: skip
    table = report.table(("", "events", "sent", "archived", "runs", "complete answers"), *rows)
    last = list(measured.values())[-1]
    missed = "" if last["complete_s"] <= AIM_S else f" It was missed by {last['complete_s'] - AIM_S:.0f} s."
    floors = "; ".join(
        f"{name} {seconds:.1f} s ({last['complete_s'] / seconds:.0f} times less)"
        for name, seconds in last["floors_s"].items()
    )
    phases = report.table(
        ("phase", "from", "until", "takes"),
        *(
            (name, f"{begin:.1f} s", f"{begin + seconds:.1f} s", f"{seconds:.1f} s")
            for name, begin, seconds in last["timeline"]
        ),
    )
    return (
        f"{table}\n\nSeconds since `tidemark import` was typed, with the stack up; `runs` is how long the batch runs "
        f"meanwhile took, without the start of their process. Two views with 15 answers, {last['states']:,} states, "
        f"{last['duplicates']:,} rows twice. The aim is {AIM_S} s for {EVENTS:,} events.{missed} Floors of the same "
        f"file: {floors}.\n\nWhere the time went ({list(measured)[-1]}; load when it began {last['load']}):\n\n{phases}"
    )


def rows(events: int) -> Iterator[dict[str, Any]]:
    """The flights of a year by time; some come late, some twice. Always the same."""
    chance = random.Random(7)  # noqa: S311  made-up flights
    waiting: list[dict[str, Any]] = []
    for number in range(events):
        at = YEAR + timedelta(seconds=int(number * 365 * 86_400 / events))
        if at.hour < 5 and chance.random() < 0.8:
            at += timedelta(hours=6)
        origin, carrier = PAIRS[int(len(PAIRS) * chance.random() ** 1.3)]
        row = dict.fromkeys(COLUMNS, "") | {
            "flight_id": f"f{number:07}", "event_time": at.strftime("%Y-%m-%dT%H:%M:%SZ"), "year": at.year,
            "month": at.month, "day": at.day, "sched_dep_time": at.hour * 100 + at.minute, "carrier": carrier,
            "sched_arr_time": (at.hour * 100 + 230) % 2400, "flight": chance.randrange(1, 6000), "origin": origin,
            "tailnum": f"N{chance.randrange(4000):05}", "dest": f"D{chance.randrange(100):02}", "hour": at.hour,
            "distance": chance.randrange(80, 4900),
        }  # fmt: skip
        if chance.random() > 0.025:  # the others were cancelled
            delay = round(chance.gauss(10, 30))
            row |= {
                "dep_time": at.hour * 100 + at.minute, "dep_delay": delay, "arr_time": (at.hour * 100 + 235) % 2400,
                "arr_delay": delay + round(chance.gauss(-5, 15)), "air_time": chance.randrange(30, 600),
            }  # fmt: skip
        if chance.random() < LATE_SHARE:
            waiting.append(row)
            continue
        yield row
        if chance.random() < TWICE_SHARE:
            waiting.append(row)
        while len(waiting) > 1_000:
            yield waiting.pop(chance.randrange(len(waiting)))
    yield from waiting


def write_csv(path: Path, found: Iterator[dict[str, Any]]) -> int:
    """Write a file; returns how many rows it has."""
    count = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for row in found:
            writer.writerow(row)
            count += 1
    return count


def measure(place: Path, events: int) -> dict[str, Any]:
    """Import the file into a stack that is up and warm."""
    (place / "views").mkdir()
    (place / "views" / "flights.py").write_text(DECLARED)
    warm, year = place / "warm.csv", place / "year.csv"
    write_csv(warm, ({**row, "flight_id": f"w{row['flight_id']}"} for row in rows(WARM)))
    sent = write_csv(year, rows(events))
    settings = load_settings(
        home=place / "home", views_dir=place / "views", with_examples=False, alerts_enabled=False,
    )  # fmt: skip
    environment = {**os.environ, **child_environment(settings)}
    try:
        subprocess.run([*TIDEMARK, "up", "--detach"], env=environment, check=True, stdout=subprocess.DEVNULL)
        with watched(settings) as first:
            tidemark_import(warm, environment)
            first.wait_for("complete", rows_of(warm))
            first.wait_until_archived(rows_of(warm))
        floors = {"bare confluent-kafka": history_floors.send(year, settings, addresses(settings).kafka)}
        with watched(settings) as watch:
            began = time.monotonic()
            tidemark_import(year, environment)
            returned = time.monotonic() - began
            watch.wait_for("complete", rows_of(warm) + sent)
            watch.wait_until_archived(rows_of(warm) + sent)
        found = check(environment)
    finally:
        subprocess.run([*TIDEMARK, "down"], env=environment, check=True, stdout=subprocess.DEVNULL)
        keep_logs(settings)
    floors["DuckDB, both views, values only"], counted = history_floors.aggregate(year, place)
    if (found, counted) != (events + WARM, events):
        raise SystemExit(f"The answer has {found} flights of {events + WARM}, DuckDB {counted} of {events}.")
    runs = [each for each in runs_of(settings) if each.started > watch.began_at]
    total = rows_of(warm) + sent
    return {
        "floors_s": {name: round(seconds, 2) for name, seconds in floors.items()},
        "timeline": timeline(settings, watch, began, total, runs),
        "events": sent,
        "duplicates": sent - events,
        "states": watch.states,
        "sent_s": round(watch.when("sent", total) - began, 1),
        "archived_s": round(watch.when("archived", total) - began, 1),
        "runs_s": [round(each.finished - each.started, 1) for each in runs],
        "complete_s": round(watch.when("complete", total) - began, 1),
        "returned_s": round(returned, 1),
        "load": report.machine()["load when it began"],
    }


def keep_logs(settings: Settings) -> None:
    """Print how the layers went, for whoever reads the output."""
    for name in ("speed", "scheduler"):
        with suppress(OSError):
            path = next(settings.home.rglob(f"{name}.log"))
            sys.stderr.write(f"---- {name}\n{path.read_text(encoding='utf-8')[-6_000:]}\n")


def rows_of(path: Path) -> int:
    """The rows of a file that was written by `write_csv`."""
    with path.open("rb") as file:
        return sum(1 for _ in file) - 1


def tidemark_import(path: Path, environment: dict[str, str]) -> None:
    """As a user does."""
    subprocess.run(
        [*TIDEMARK, "import", str(path), "--source", "flights"],
        env=environment, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def check(environment: dict[str, str]) -> int:
    """How many flights the answer has."""
    command = [*TIDEMARK, "query", "origins", "--from", "2024-12-31", "--to", "2026-01-02", "--answers", "flights"]
    reply = subprocess.run([*command, "--output", "json"], env=environment, check=True, capture_output=True, text=True)
    return int(json.loads(reply.stdout)["rows"][0]["flights"])


def runs_of(settings: Settings) -> list[Manifest]:
    """The published runs."""
    folder = BatchFolder.of(settings, "flights")
    return [read_manifest(folder, entry.run) for entry in publish_log.read(folder) if entry.run]


def timeline(
    settings: Settings, watch: Watch, began: float, total: int, runs: list[Manifest]
) -> list[tuple[str, float, float]]:
    """The phases in the order of their beginning: name, when it began, how long it took."""
    found = [(name, 0.0, watch.when(phase, total) - began) for name, phase in PHASES.items()]
    noted = scheduler_log(settings, watch.began_at)
    if decided := next((at for at, event in noted if event == "backlog_found"), None):
        found.append(("until the scheduler decided that a run overtakes", 0.0, decided))
    starts = [at for at, event in noted if event == "run_started"]
    for run in runs:
        begin = run.started - watch.began_at
        called = max((at for at in starts if at <= begin), default=begin)
        found.append((f"run {run.run}: its process and Spark start", called, begin - called))
        for phase in run.timeline:
            if phase.name not in ("master", "Spark"):  # in the line before
                found.append((f"run {run.run}: {phase.name}", begin, phase.seconds))
                begin += phase.seconds
    return sorted(
        [(name, round(begin, 1), round(seconds, 1)) for name, begin, seconds in found], key=lambda each: each[1:]
    )


def scheduler_log(settings: Settings, since: float) -> list[tuple[float, str]]:
    """What the scheduler noted: seconds after `since`, and the name of the event."""
    path = next(settings.home.rglob("scheduler.log"))
    lines = re.findall(r"^(\S+Z) \[\w+ *\] (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    found = [(datetime.fromisoformat(at).timestamp() - since, event) for at, event in lines]
    return [(at, event) for at, event in found if at > 0]


class Watch:
    """How many events each phase has, at any moment."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self.began_at = settings, time.time()
        self._table = table_path(settings, "flights")
        self._redis = SpeedViews(redis_client(settings, addresses(settings).redis, timeout_s=5), "flights")
        self._seen: list[tuple[float, dict[str, int]]] = []
        self.states = 0

    def look(self) -> None:
        """Remember what is there now."""
        counts = {"sent": 0, "archived": 0, "complete": 0}
        with suppress(Exception):
            counts["archived"] = sum(coverage.of(self._table).cut.values())
        with suppress(Exception):
            found = self._redis.reader.snapshot()
            counts["complete"] = sum(found.meta.applied.values()) if found.meta else 0
        with suppress(Exception):
            reported = self._redis.client.hget(self._redis.layout.looked, "end")
            counts["sent"] = sum(json.loads(reported).values()) if reported else 0  # type: ignore[arg-type]
        self._seen.append((time.monotonic(), counts))

    def when(self, phase: str, count: int) -> float:
        """The first time that a phase had so many."""
        return next(at for at, counts in self._seen if counts[phase] >= count)

    def wait_until_archived(self, count: int) -> None:
        """Wait for the archiver, which commits a quiet source seldom: it is asked to, after all else was measured."""
        ask_for_commit(self._table)
        self.wait_for("archived", count)

    def wait_for(self, phase: str, count: int) -> None:
        """Wait until a phase has so many."""
        deadline, shown = time.monotonic() + GIVE_UP_S, 0.0
        while not any(counts[phase] >= count for _, counts in self._seen[-10:]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{phase}: {self._seen[-1]} of {count}")
            if time.monotonic() > shown + 10:
                shown = time.monotonic()
                sys.stderr.write(f"{time.strftime('%H:%M:%S')} {self._seen[-1][1] if self._seen else ''}\n")
            time.sleep(LOOK_S)


@contextmanager
def watched(settings: Settings) -> Iterator[Watch]:
    """Look all the time, from a thread; count the states of the views at the end."""
    watch, done = Watch(settings), threading.Event()

    def look() -> None:
        while not done.wait(LOOK_S):
            watch.look()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        done.set()
        thread.join()
    folder = BatchFolder.of(settings, "flights")
    newest = publish_log.last(folder) if folder.root.is_dir() else None
    in_batch = read_manifest(folder, newest.run).rows if newest is not None and newest.run else 0
    watch.states = in_batch + watch._redis.reader.size()[0]


if __name__ == "__main__":
    main()
