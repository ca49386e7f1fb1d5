"""The demo: the whole platform at work, and each answer compared with a recompute from scratch.

A day of web traffic arrives, with late events, duplicates and records that are no events. More keeps arriving while a
batch run is made. Each answer is compared with a recompute over the master dataset at the cut that it reports.
"""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from types import FrameType
from typing import Annotated, Any
from urllib.parse import urlencode, urlsplit

import typer

from infra import terminal
from infra.clients.kafka import librdkafka_config
from infra.errors import InfraError, NotRunning
from infra.home import Home
from infra.settings import Settings, child_environment, load_settings
from infra.stack import up
from infra.stack.addresses import addresses, with_addresses
from master_dataset.archiver.commit_request import ask_for_commit
from master_dataset.cut import cut_from_json, is_below
from master_dataset.dead_letters.letters import watermarks
from master_dataset.kafka.record import KafkaRecord
from master_dataset.kafka.send import send_records
from master_dataset.table import coverage
from master_dataset.table.paths import table_path
from serving_layer.query.limits import QueryLimits
from serving_layer.query.parse import parse_query
from serving_layer.verification.from_scratch import are_same, events_below, recompute
from tidemark.demo import traffic
from tidemark.demo.board import Board
from views.catalog.card_attempts import cards
from views.catalog.web import web
from views.declarations import declared_by
from views.in_memory import Event
from views.view import View

BATCH = 500
LIVE_A_SECOND = 40
SEED = 20_260_301
PATIENCE_S = 180
MARK = "made-by-the-demo"
"""A file in the demo's home: only such a home is removed."""
POISON = (b'{"event_id": "torn', b'{"properties": {"ms": "fast"}}', b"\xff\xfe\x00")
ALARMS = {"many_attempts": ("attempts", "declined"), "slow_page": ("requests", "p95_ms")}
"""Alerts that fire in the demo, and the answers that are shown of them."""
QUERIES = (
    ("page_hits", {"grain": "all"}),
    ("page_hits", {"by": "url", "order": "-hits", "limit": "3"}),
    ("page_hits", {"grain": "hour", "url.prefix": "/docs"}),
    ("page_latency", {"url": "/pricing", "answers": "requests,ms,slow_share"}),
    ("signups", {"by": "site", "answers": "visitors,signups,conversion"}),
    ("top_pages", {"answers": "hits,pages"}),
)


class DemoFailed(Exception):
    """Something did not arrive in time, or an answer was wrong."""

    exit_code = 1


def command(
    events: Annotated[
        int, typer.Option(min=1, envvar="TIDEMARK_CLI_EVENTS", help="Number of events before the live ones.")
    ] = 20_000,
    once: Annotated[
        bool, typer.Option("--once", help="End by itself, with an exit code, instead of staying up.")
    ] = False,
) -> None:
    """Start everything, send events, run a batch, and compare each answer with a recompute from scratch."""
    settings = demo_settings(load_settings())
    home = Home(settings.home)
    home.check()
    if (home.root / MARK).is_file() and not home.is_locked():
        shutil.rmtree(home.root)  # left by a demo that was interrupted
    if home.exists:
        raise DemoFailed(f"{str(home.root)!r} is in use, or was not made by the demo. Move it away first.")
    with terminal.jar_progress() as progress:
        up.check_and_fetch(settings, progress)
    secret = up.first_access_key(settings) or ""
    (home.root / MARK).touch()
    is_kept = False
    try:
        with ended_by_signals():
            with terminal.live_status() as show:
                up.start_detached(settings, show)
            Demo(settings, secret).show(events, stays=not once)
    except DemoFailed as error:
        is_kept = True
        raise DemoFailed(f"{error} Its logs are in {str(home.root)!r} until the next demo.") from None
    except InfraError:
        is_kept = True  # it did not start, and its logs say why
        raise
    finally:
        with terminal.live_status() as show, suppress(NotRunning):
            up.stop(settings, show)
        if not is_kept:
            shutil.rmtree(home.root)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block like Ctrl-C, so that its stack is stopped; without this it would stay up."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        # Once is enough: a second signal must not interrupt the stopping.
        for number in before:
            signal.signal(number, signal.SIG_IGN)


def demo_settings(users: Settings) -> Settings:
    """Defaults on a home of its own, beside the user's: of theirs only how this machine runs Java.

    Above all the demo never touches a Kafka, a Redis or a master dataset that the user's settings name.
    """
    kept = ("java_home", "jars_dir", "ports_file", "ivy_settings", "kafka_heap_mb", "spark_driver_memory")
    return Settings.model_construct(
        **{name: getattr(users, name) for name in kept},
        home=users.home.with_name(f"{users.home.name}-demo"),
        examples=f"{web.name},{cards.name}",
    )


class Demo:
    """The steps of the demo, on a stack that is up."""

    def __init__(self, settings: Settings, secret: str) -> None:
        self.settings, self.where = settings, addresses(settings)
        self.login = "Basic " + base64.b64encode(f"admin:{secret}".encode()).decode()
        self.secret = secret
        self.views = declared_by(settings).views
        self.end = datetime.now(UTC) + timedelta(hours=1)
        self.table = table_path(settings, web.name)
        self.events: list[Event] = []
        self.read_until: dict[int, int] = {}
        self.proved = 0
        self.board = Board()

    def show(self, count: int, *, stays: bool) -> None:
        """Run all steps. DemoFailed where an answer is wrong."""
        with _timed(f"POST {self.where.collector}/events/{web.name}: {count:,} visits, late ones and duplicates too"):
            self.post(traffic.a_day(count, datetime.now(UTC), SEED))
        kafka = librdkafka_config(self.settings, self.where.kafka)
        send_records(kafka, [KafkaRecord(web.topic, value) for value in POISON])
        with self.board.shown(), self.live_traffic():
            with _timed("The speed layer has counted them; there is no batch run yet"):
                _wait_for("the speed layer", lambda: self.total() >= count)
            self.prove("From the speed layer alone")
            with _timed("A batch run, while events keep arriving"):
                self.batch_run()
            self.prove("Batch and speed views, after the first run")
            self.alarm()
            if stays:
                self.stay()
        _wait_for("dead letters", lambda: watermarks(kafka, web)[1] >= len(POISON))
        _say(f"{len(POISON)} invalid records are dead letters; {self.proved} answers were proved.")

    def alarm(self) -> None:
        """Try a card again and again, and make a page slow: the alerts fire."""
        began, now = time.monotonic(), datetime.now(UTC)
        self.post(traffic.card_attempts(6, now, SEED), cards.name)
        self.post(traffic.slow_visits(60, now, SEED))
        _say(f"6 attempts on one card within a second, and 60 visits to a page that became slow, at {now:%H:%M:%S}")
        shown: set[str] = set()

        def have_fired() -> bool:
            for episode in self.episodes():
                if episode["alert"] in ALARMS and episode["fired_at"] and episode["id"] not in shown:
                    shown.add(episode["id"])
                    key = ", ".join(f"{name} {value}" for name, value in episode["key"].items())
                    value = _short(episode["value"], ALARMS[episode["alert"]])
                    _say(f"  ALERT {episode['alert']}: {key}: {value} (after {time.monotonic() - began:.1f} s)")
            return {each.partition("-")[0] for each in shown} >= set(ALARMS)

        _wait_for(f"the alerts {' and '.join(ALARMS)}", have_fired)

    def episodes(self) -> list[dict[str, Any]]:
        """The newest episodes of alerts, by REST."""
        found: list[dict[str, Any]] = json.loads(self.request(self.where.serving, "/alerts/history"))["episodes"]
        return found

    # ---- events ----

    def post(self, events: Iterable[traffic.Event], source: str = web.name) -> None:
        """By REST, in batches, each acknowledged."""
        rest = iter(events)
        while batch := list(islice(rest, BATCH)):
            self.request(self.where.collector, f"/events/{source}", json.dumps(batch))

    @contextmanager
    def live_traffic(self) -> Iterator[None]:
        """Some events a second, until the block ends."""
        done, events = threading.Event(), traffic.live(SEED)

        def send() -> None:
            while not done.wait(0.5):
                self.post(islice(events, LIVE_A_SECOND // 2))

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        try:
            yield
        finally:
            done.set()
            sender.join()

    def batch_run(self) -> None:
        """`tidemark batch run`; queries are answered meanwhile."""
        environment = child_environment(with_addresses(self.settings))
        command = [sys.executable, "-m", "tidemark", "batch", "run", "--source", web.name]
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as run:
            while run.poll() is None:
                self.prove("During the batch run", only=1)
                time.sleep(3)
            output = run.stderr.read().decode(errors="replace") if run.stderr else ""
        if run.returncode:
            raise DemoFailed(f"The batch run ended with {run.returncode}: {output[-500:]}")

    # ---- queries ----

    def prove(self, stage: str, only: int = len(QUERIES)) -> None:
        """Query, recompute at the cut of each answer, compare, and show it on the board."""
        rows, cut = {}, ""
        for name, parameters in QUERIES[:only]:
            view = self.views[name]
            options = {**parameters, "from": (self.end - timedelta(hours=26)).isoformat(), "to": self.end.isoformat()}
            answer = self.parse_query(name, {**options, "explain": "true"})
            expected = self.recomputed(view, options, answer["meta"]["cut"])
            row = _compared(view, answer, expected)
            _check_rows(view, answer, expected, parameters)
            rows[" ".join([name, *(f"{option}={value}" for option, value in parameters.items())])] = row
            cut = _cut_text(answer["meta"]["cut"])
            self.proved += 1
        self.board.update(stage, rows, cut)

    def parse_query(self, view: str, parameters: dict[str, str]) -> Any:
        """By REST."""
        return json.loads(self.request(self.where.serving, f"/views/{view}/query?{urlencode(parameters)}"))

    def total(self) -> int:
        """Visits that are counted so far, with those of events that keep coming."""
        try:
            found = self.parse_query(
                "page_hits", {"from": (self.end - timedelta(hours=26)).isoformat(), "to": self.end.isoformat()}
            )
        except DemoFailed:  # the views are not there yet
            return 0
        return sum(row["hits"] for row in found["rows"])

    def recomputed(self, view: View, parameters: dict[str, str], cut: dict[str, int]) -> dict[Any, dict[str, Any]]:
        """The same query from scratch, over everything in the master dataset below the cut."""
        end = cut_from_json(cut)
        ask_for_commit(self.table)
        _wait_for("the master dataset", lambda: is_below(end, coverage.of(self.table).cut))
        self.events += events_below(self.table, view.source, end, self.read_until)
        self.read_until = {**self.read_until, **{p: max(o, self.read_until.get(p, 0)) for p, o in end.items()}}
        below = [event for event in self.events if event.offset < end.get(event.partition, 0)]
        query = parse_query(view, list(parameters.items()), now=time.time(), limits=QueryLimits())
        return {(period.start, key): answers for (period, key), answers in recompute(query, below).items()}

    def stay(self) -> None:
        """Until Ctrl-C."""
        _say(
            f"Everything stays up. The dashboard: {self.where.serving}/ (key admin, secret {self.secret})\n"
            f"The API: {self.where.serving}/docs, with curl -u admin:{self.secret}; for example\n"
            f"  curl -u admin:{self.secret} '{self.where.serving}/views/page_hits/query?by=url&order=-hits&limit=3'\n"
            "Ctrl-C ends it and removes what it made."
        )
        try:
            while True:
                time.sleep(30)
                self.prove(f"Still equal at {datetime.now(UTC):%H:%M:%S}", only=2)
        except KeyboardInterrupt:
            _say("Ending.")

    def request(self, address: str, path: str, body: str | None = None) -> bytes:
        """The body of the answer; DemoFailed where it is an error."""
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
        headers = {"Authorization": self.login, "Content-Type": "application/json"}
        try:
            connection.request("POST" if body else "GET", path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise DemoFailed(f"{address}{path} answered {answer.status}: {text[:500].decode(errors='replace')}")
        return text


def _compared(view: View, answer: Any, expected: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    """The first row in short, and what batch and speed views gave to it. DemoFailed where a row differs."""
    keys = [name for name in view.keys if answer["rows"] and name in answer["rows"][0]]
    for row in answer["rows"]:
        group = (int(datetime.fromisoformat(row["bucket"]).timestamp()), tuple(row[name] for name in keys))
        ours = {name: row[name] for name in expected.get(group, ())}
        if group not in expected or not are_same(view, ours, expected[group]):
            raise DemoFailed(
                f"View {view.name!r} answers {ours} for {group}; recomputed at the cut {answer['meta']['cut']} it is "
                f"{expected.get(group)}. This is a defect: please report it."
            )
    if not answer["rows"]:
        return {"answer": "no rows", "batch": "", "speed": "", "proof": "equal"}
    first = answer["rows"][0]
    group = (int(datetime.fromisoformat(first["bucket"]).timestamp()), tuple(first[name] for name in keys))
    names = list(expected[group])[:2]
    parts = {part: (first["explain"][part] or {}).get(names[0]) for part in ("batch", "speed")}
    return {"answer": _short(first, names), **parts, "proof": "equal"}


def _check_rows(view: View, answer: Any, expected: dict[Any, dict[str, Any]], parameters: dict[str, str]) -> None:
    """DemoFailed where a row is missing, or one that comes first was left out."""
    limit, order = int(parameters.get("limit", 1000)), parameters.get("order", "")
    problem = None
    if len(answer["rows"]) != min(limit, len(expected)):
        problem = f"{len(answer['rows'])} rows, and recomputed there are {len(expected)}"
    elif order.startswith("-") and order[1:] in view.answers:
        best = sorted((answers[order[1:]] for answers in expected.values()), reverse=True)[:limit]
        if [row[order[1:]] for row in answer["rows"]] != best:
            problem = f"not the first rows by {order[1:]}, which recomputed have {best}"
    if problem is not None:
        raise DemoFailed(
            f"View {view.name!r} answers {problem}, at the cut {answer['meta']['cut']}. This is a defect: please "
            "report it."
        )


def _short(answers: dict[str, Any], names: Iterable[str]) -> str:
    texts = [f"{name} {json.dumps(answers[name])}" for name in names if name in answers]
    return ", ".join(text if len(text) <= 40 else f"{text[:37]}..." for text in texts)


def _cut_text(cut: dict[str, int]) -> str:
    return " ".join(f"{partition}:{offset}" for partition, offset in sorted(cut.items()))


def _wait_for(what: str, is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_there():
        if time.monotonic() > deadline:
            raise DemoFailed(f"Waited {PATIENCE_S} s for {what}, without success.")
        time.sleep(0.2)


def _say(text: str) -> None:
    terminal.out.print(text, highlight=False, markup=False)


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    terminal.err.print(f"{what} ({time.monotonic() - began:.1f} s)", highlight=False, markup=False)
