"""How fast queries are answered, compared with a route that returns a constant, DuckDB and ClickHouse, in one run.

    python benchmarks/bench_serving.py [--states 2000000] [--seconds 4] [--rounds 3] [--publishing 20] [--after-a-day]

The reference view with generated states: a batch view of 30 days, and a speed view to which micro-batches are applied
all the time. One process serves (`serving_workers` 1), another one asks. The rounds alternate, so that a busy moment of
the machine affects all contestants alike. The other engines read the same Parquet files, in process: no HTTP, no speed
view. They add only counts and sums, because they cannot merge the states of distinct users and quantiles.
"""

from __future__ import annotations

import argparse
import base64
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import load
import psutil
import report
from busy_speed import EVERY_S, GROUPS
from made_home import DAY_HOURS, DAYS, KEYS, MadeHome, SpeedWriter
from other_engines import by_chdb, by_duckdb
from questions import COLD, ONE_KEY, PARAMETERS, QUESTIONS, TOP, TOTAL, Files, path_of
from redis import Redis

from hand_off.speed_views import SpeedViews
from infra.rest.access_keys import add_key
from infra.settings import Settings, child_environment
from infra.stack.redis_server import check_redis_port, find_redis_server

HERE = Path(__file__).parent
CONNECTIONS = (1, 16)
PUBLISH_EVERY_S = 5
SHORT_HISTORY = 10
"""The short history, which memory is compared with, has so many times fewer states and days."""
TOP_AIM_MS = 5.0
DEADLINE_S = 60

FLOOR = "constant route: FastAPI, one read of Redis"
CHDB = "ClickHouse in process (chdb)"
ENGINES = {"DuckDB in process": by_duckdb, CHDB: by_chdb}


def main() -> None:
    """Measure, and write the result and the page."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--states", type=int, default=2_000_000, help="of the batch view")
    arguments.add_argument("--seconds", type=float, default=4, help="length of each measurement")
    arguments.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    arguments.add_argument(
        "--publishing", type=float, default=20, help="seconds of a measurement while runs are published"
    )
    arguments.add_argument(
        "--after-a-day", action="store_true", help="measure only the speed view of a day, print it and write nothing"
    )
    given = arguments.parse_args()
    least, most = SHORT_HISTORY * DAYS * DAY_HOURS, KEYS * DAYS * DAY_HOURS
    if not least <= given.states <= most:
        arguments.error(f"--states is {given.states}; it should be {least} to {most}.")
    os.environ["TIDEMARK_CONFIG"] = os.devnull
    machine, spawning = report.machine(), multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="serving-bench-", ignore_cleanup_errors=True) as folder,
        ProcessPoolExecutor(1, spawning) as asking,
    ):
        bench = Bench(Path(folder), given.states, given.seconds, asking)
        with spawning.Pool() as workers:
            bench.make(workers.map)
        if given.after_a_day:
            for each in day_lines(bench.after_a_day(given.rounds)):
                print(each)
            return
        short_mb = bench.short_history()
        found = bench.measure(given.rounds, given.publishing)
    found |= {"machine": machine, "memory_mb": {"short": short_mb, "long": found["memory_mb"]}}
    report.write("serving", "Serving layer: questions", found, text(found))


# ---- what is asked -------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """A server and what is asked of it."""

    port: int
    requests: list[bytes]


def request(path: str, authorization: str = "") -> bytes:
    """A GET as it goes over the wire."""
    sent = f"GET {path} HTTP/1.1\r\nHost: bench\r\n"
    return (sent + (f"Authorization: {authorization}\r\n" if authorization else "") + "\r\n").encode()


# ---- who is measured -----------------------------------------------------------


@dataclass
class Measured:
    """What each round gave, for some connections."""

    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    most_ms: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    def add(self, times: Sequence[float], seconds: float, cpu_s: float = 0.0) -> None:
        """One more round: how long each answer took, and what the server did for all of them."""
        ordered = sorted(times)
        self.p50_ms.append(ordered[len(ordered) // 2] * 1000)
        self.p99_ms.append(ordered[int(len(ordered) * 0.99)] * 1000)
        self.most_ms.append(ordered[-1] * 1000)
        self.rate.append(len(ordered) / seconds)
        self.cpu_us.append(cpu_s * 1e6 / len(ordered))

    def figures(self) -> dict[str, dict[str, float]]:
        """Medians with their spread."""
        return {name: report.median(values) for name, values in vars(self).items()}


class Bench:
    """A home with many states, a Redis, and everybody who answers."""

    def __init__(self, place: Path, states: int, seconds: float, asking: ProcessPoolExecutor) -> None:
        self.place, self.seconds, self._asking = place, seconds, asking
        self.redis_port, self.port, self.constant_port = free_port(), free_port(), free_port()
        self.redis_url = f"redis://127.0.0.1:{self.redis_port}/0"
        self.long = self._home("long", states, DAYS)
        self.short = self._home("short", states // SHORT_HISTORY, DAYS // SHORT_HISTORY)

    def _home(self, name: str, states: int, days: int) -> MadeHome:
        return MadeHome(
            self.place / name, states, days, redis_url=self.redis_url, serving_port=self.port, serving_workers=1
        )

    def make(self, each: Callable[..., Any]) -> None:
        """The batch views of both histories."""
        for home in (self.short, self.long):
            began = time.monotonic()
            home.make(each)
            say(f"{home.states:,} states made and indexed in {time.monotonic() - began:.0f} s")

    # ---- all measurements ----

    def short_history(self) -> dict[str, float]:
        """Memory of a process that serves the short history, after the same questions."""
        with self._redis() as speed_views, self._serving(self.short) as process:
            self._fill(self.short, speed_views, 1)
            self._warm(self.short)
            return memory_mb(process)

    def measure(self, rounds: int, publishing_s: float) -> dict[str, Any]:
        """Everything else."""
        home = self.long
        with self._redis() as speed_views, self._serving(home) as process:
            self._fill(home, speed_views, 1)
            self._check(home)
            self._warm(home)
            memory = memory_mb(process)
            with self._constant(), self._busy(home):
                contest = self._contest(home, rounds, process)
                cold = self._drive(self._requests(home, COLD), 1)
                engines = self._engines(home, rounds)
                busy, _ = speed_views.reader.size()
                usual, publishing = self._while_publishing(home, rounds, publishing_s, speed_views)
        return {
            "states": home.states,
            "keys": KEYS,
            "speed_states": busy,
            "micro_batch": min(GROUPS, home.an_hour),
            "contest": {name: {n: each.figures() for n, each in found.items()} for name, found in contest.items()},
            "engines": {name: {q: each.figures() for q, each in found.items()} for name, found in engines.items()},
            "cold": cold.figures(),
            "usual": usual.figures(),
            "publishing": publishing.figures(),
            "after_a_day": self.after_a_day(rounds),
            "memory_mb": memory,
        }

    def after_a_day(self, rounds: int) -> dict[str, Any]:
        """The questions that are about all keys, while the speed view holds a day."""
        home = self.long
        with self._redis() as speed_views, self._serving(home) as process:
            self._fill(home, speed_views, DAY_HOURS)
            states, _ = speed_views.reader.size()
            found = {name: Measured() for name in (TOP, TOTAL)}
            with self._busy(home):
                for _ in range(rounds):
                    for name, each in found.items():
                        self._drive(self._asked(home)[name], 1, each)
            own = memory_mb(process)["own"]
        return {"speed_states": states, "own_mb": own, **{name: each.figures() for name, each in found.items()}}

    def _contest(self, home: MadeHome, rounds: int, process: psutil.Process) -> dict[str, dict[int, Measured]]:
        asked = {FLOOR: Asked(self.constant_port, [request("/constant")]), **self._asked(home)}
        found = {name: {count: Measured() for count in CONNECTIONS} for name in asked}
        for number in range(rounds):
            for name, each in asked.items():
                for count in CONNECTIONS:
                    self._drive(each, count, found[name][count], None if name == FLOOR else process)
            say(f"round {number} of {rounds}")
        return found

    def _engines(self, home: MadeHome, rounds: int) -> dict[str, dict[str, Measured]]:
        files = Files(home.parquet(), home.parquet(1))
        found: dict[str, dict[str, Measured]] = {}
        for name, engine in ENGINES.items():
            measured = found[name] = {question: Measured() for question in QUESTIONS}
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as child:
                times = child.submit(engine, files, rounds, self.seconds).result()
            for question, each in times.items():
                for one_round in each:
                    measured[question].add(one_round, self.seconds)
            say(f"{name} is done")
        return found

    def _while_publishing(
        self, home: MadeHome, rounds: int, seconds: float, speed_views: SpeedViews
    ) -> tuple[Measured, Measured]:
        """One key, one connection; in turns without and with runs that are published."""
        count = max(int(seconds / PUBLISH_EVERY_S), 1)
        numbers = range(2, 2 + rounds * count)
        home.make_runs(numbers)
        asked, usual, publishing = self._asked(home)[ONE_KEY], Measured(), Measured()

        def publish(runs: Sequence[int]) -> None:
            for run in runs:
                time.sleep(PUBLISH_EVERY_S / 2)
                home.publish(run, speed_views)
                time.sleep(PUBLISH_EVERY_S / 2)

        with ThreadPoolExecutor(1) as publisher:
            for number in range(rounds):
                self._drive(asked, 1, usual, seconds=seconds)
                runs = numbers[number * count : (number + 1) * count]
                published = publisher.submit(publish, runs)
                self._drive(asked, 1, publishing, seconds=seconds)
                published.result()
                served = self._answer(home, PARAMETERS[ONE_KEY][0])["meta"]["batch"]["run"]
                if served != runs[-1]:
                    raise SystemExit(f"Run {runs[-1]} was published, and run {served} is served.")
        return usual, publishing

    # ---- parts ----

    def _asked(self, home: MadeHome) -> dict[str, Asked]:
        return {name: self._requests(home, asked) for name, asked in PARAMETERS.items()}

    def _requests(self, home: MadeHome, asked: Sequence[dict[str, str]]) -> Asked:
        secret = f"bench:{self._secret(home)}"
        authorization = "Basic " + base64.b64encode(secret.encode()).decode()
        return Asked(self.port, [request(path_of(query), authorization) for query in asked])

    def _secret(self, home: MadeHome) -> str:
        kept = home.settings.home / "bench.secret"
        if not kept.is_file():
            kept.write_text(add_key(home.settings.home, "bench", ["query"]))
        return kept.read_text()

    def _drive(
        self,
        asked: Asked,
        connections: int,
        into: Measured | None = None,
        process: psutil.Process | None = None,
        seconds: float = 0.0,
    ) -> Measured:
        into, seconds = into or Measured(), seconds or self.seconds
        before = _cpu_s(process)
        began = time.monotonic()
        times = self._asking.submit(load.drive, asked.port, asked.requests, connections, seconds).result()
        into.add(times, time.monotonic() - began, _cpu_s(process) - before)
        return into

    def _warm(self, home: MadeHome) -> None:
        for each in self._asked(home).values():
            for count in CONNECTIONS:
                self._drive(each, count)

    def _check(self, home: MadeHome) -> None:
        """What is measured is a right answer: the total over all days is that of all states that were made."""
        (query,) = PARAMETERS[TOTAL]
        rows = self._answer(home, {**query, "explain": "true"})["rows"]
        hits = sum(row["explain"]["batch"]["hits"] for row in rows)
        if hits != home.hits:
            raise SystemExit(f"The batch view answers {hits} hits, where {home.hits} were made.")

    def _answer(self, home: MadeHome, parameters: dict[str, str]) -> dict[str, Any]:
        address = f"http://127.0.0.1:{self.port}{path_of(parameters)}"
        answer = httpx.get(address, auth=("bench", self._secret(home)), timeout=DEADLINE_S)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    def _fill(self, home: MadeHome, speed_views: SpeedViews, hours: int) -> None:
        SpeedWriter(speed_views, home.view, home.folder, home.an_hour).fill(hours)

    # ---- processes ----

    @contextmanager
    def _redis(self) -> Iterator[SpeedViews]:
        """An empty one."""
        options = ["--bind", "127.0.0.1", "--port", str(self.redis_port), "--save", "", "--appendonly", "no"]
        command = [str(find_redis_server()), *options, "--dir", str(self.place)]
        with self._process(command, {**os.environ}), Redis.from_url(self.redis_url) as client:
            wait_until("Redis answers", lambda: check_redis_port(self.redis_port) is None)
            yield SpeedViews(client, self.long.view.source.name)

    @contextmanager
    def _serving(self, home: MadeHome) -> Iterator[psutil.Process]:
        self._secret(home)
        command = [sys.executable, "-m", "serving_layer"]
        with self._process(command, child_environment(home.settings)) as process:
            wait_until("the serving layer is ready", lambda: answers(self.port, "/ready"))
            yield psutil.Process(process.pid)

    @contextmanager
    def _constant(self) -> Iterator[None]:
        command = [sys.executable, str(HERE / "constant_route.py"), str(self.constant_port), self.redis_url]
        with self._process(command, {**os.environ}):
            wait_until("the constant route answers", lambda: answers(self.constant_port, "/constant"))
            yield

    @contextmanager
    def _busy(self, home: MadeHome) -> Iterator[None]:
        """Somebody who applies micro-batches all the time."""
        command = [sys.executable, str(HERE / "busy_speed.py"), str(home.an_hour)]
        with self._process(command, child_environment(home.settings)) as process:
            yield
            if process.poll() is not None:
                raise SystemExit("The speed view was not busy: its writer ended. Its log is above.")

    @contextmanager
    def _process(self, command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


# ---- small things --------------------------------------------------------------


def memory_mb(process: psutil.Process) -> dict[str, float]:
    """What a process holds itself, and the files that are mapped into it: these belong to the page cache."""
    info = process.memory_info()
    mapped = getattr(info, "shared", 0)
    return {"own": round((info.rss - mapped) / 2**20, 1), "mapped": round(mapped / 2**20, 1)}


def _cpu_s(process: psutil.Process | None) -> float:
    return sum(process.cpu_times()[:2]) if process is not None else 0.0


def answers(port: int, path: str) -> bool:
    """Whether a server answers 200."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}{path}").status_code == 200
    except httpx.TransportError:
        return False


def wait_until(what: str, is_so: Callable[[], bool]) -> None:
    """Or end, and say what was waited for."""
    end = time.monotonic() + DEADLINE_S
    while not is_so():
        if time.monotonic() > end:
            raise SystemExit(f"Waited {DEADLINE_S} s until {what}.")
        time.sleep(0.05)


def free_port() -> int:
    """Of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def say(what: str) -> None:
    """To whoever watches."""
    sys.stderr.write(f"{what}\n")


# ---- the page ------------------------------------------------------------------


def text(found: dict[str, Any]) -> str:
    """The figures as markdown."""
    one, many = CONNECTIONS
    contest, floor = found["contest"], found["contest"][FLOOR]
    head = ("", f"p50 / p99, {one} connection", "requests/s", f"p50 / p99, {many} connections", "requests/s")
    questions = report.table(
        (*head, "processor time", "p50 over the constant route's", "its requests/s over these"),
        *(
            (
                name, _ms(each[one]), _rate(each[one]), _ms(each[many]), _rate(each[many]),
                f"{_of(each[one], 'cpu_us'):,.0f} µs" if name != FLOOR else "",
                f"{over(each[one], floor[one]):.1f}", f"{rate_over(floor[many], each[many]):.1f}",
            )
            for name, each in contest.items()
        ),
    )  # fmt: skip
    engines = report.table(
        ("p50 / p99, one asks", "Tidemark", *(each for name in found["engines"] for each in (name, "over Tidemark"))),
        *(
            (question, _ms(ours), *(cell for each in found["engines"].values() for cell in (
                _ms(each[question]), f"{over(each[question], ours):,.1f}",
            )))
            for question in QUESTIONS
            for ours in [contest[question][one]]
        ),
    )  # fmt: skip
    return "\n\n".join([questions, engines, _what(found), "\n".join(f"- {each}" for each in _aims(found))])


def _what(found: dict[str, Any]) -> str:
    return (
        f"{found['states']:,} batch states of {KEYS:,} keys in {DAYS} days. A speed view of {found['speed_states']:,} "
        f"states, to which {1 / EVERY_S:.0f} micro-batches of {found['micro_batch']} states a second are applied. One "
        "worker, which checks an access key. Tidemark's answers come by HTTP and merge count, distinct users, sum and "
        "quantiles of both sides. The other engines add counts and sums alone, in process, from the Parquet files of "
        "just the days in question."
    )


def _aims(found: dict[str, Any]) -> Iterator[str]:
    one, many = CONNECTIONS
    ours, floor = found["contest"], found["contest"][FLOOR]
    yield (
        f"One key takes {over(ours[ONE_KEY][one], floor[one]):.1f} times the constant route, over {many} connections "
        f"{rate_over(floor[many], ours[ONE_KEY][many]):.1f} times (the aim: 3). It is "
        f"{over(found['engines'][CHDB][ONE_KEY], ours[ONE_KEY][one]):,.0f} times faster than chdb (the aim: 10)."
    )
    yield f"A key that nobody asked for of late takes {_ms(found['cold'])}, as its states are not yet presented."
    top = ours[TOP][one]
    yield f"The top 10 take {_of(top, 'p50_ms') / TOP_AIM_MS:.2f} of {TOP_AIM_MS:g} ms, the aim: {_ms(top)}."
    usual, publishing = found["usual"], found["publishing"]
    yield (
        f"While a run is published every {PUBLISH_EVERY_S} s, p99 of one key is "
        f"{_of(publishing, 'p99_ms') / _of(usual, 'p99_ms'):.2f} times its usual value (the aim: 2): "
        f"{_of(publishing, 'p99_ms'):.1f} ms, usually {_of(usual, 'p99_ms'):.1f}. The slowest answer took "
        f"{publishing['most_ms']['most']:.0f} ms, usually {usual['most_ms']['most']:.0f}."
    )
    short, long = found["memory_mb"]["short"], found["memory_mb"]["long"]
    yield (
        f"With {SHORT_HISTORY} times the history a worker holds {long['own'] / short['own']:.2f} times the memory "
        f"(the aim: no more): {short['own']:.0f} MB and {long['own']:.0f} MB, of which up to "
        f"{Settings().serving_cache_mb:g} MB are presented answers (`serving_cache_mb`). Index files that are "
        f"mapped into it ({short['mapped']:.0f} MB and {long['mapped']:.0f} MB) belong to the page cache."
    )
    day = found["after_a_day"]
    yield (
        f"After a day without a run the speed view has {day['speed_states']:,} states: the top 10 take "
        f"{over(day[TOP], top):.1f} times as long ({_ms(day[TOP])}), the total "
        f"{over(day[TOTAL], ours[TOTAL][one]):.1f} times ({_ms(day[TOTAL])})."
    )


def day_lines(day: dict[str, Any]) -> Iterator[str]:
    """The figures of a day alone."""
    yield f"{day['speed_states']:,} states of the speed view; the process holds {day['own_mb']:.0f} MB."
    for name in (TOP, TOTAL):
        yield f"{name}: {_ms(day[name])}, at most {day[name]['most_ms']['most']:,.0f} ms, {_rate(day[name])} a second."


Figures = dict[str, dict[str, float]]


def over(left: Figures, right: Figures) -> float:
    """How many times as long an answer takes, usually."""
    return _of(left, "p50_ms") / _of(right, "p50_ms")


def rate_over(left: Figures, right: Figures) -> float:
    """How many times as many answers there are in a second."""
    return _of(left, "rate") / _of(right, "rate")


def _of(figures: Figures, name: str) -> float:
    return figures[name]["median"]


def _ms(figures: Figures) -> str:
    return f"{_of(figures, 'p50_ms'):,.1f} / {_of(figures, 'p99_ms'):,.1f} ms"


def _rate(figures: Figures) -> str:
    return f"{_of(figures, 'rate'):,.0f}"


if __name__ == "__main__":
    main()
