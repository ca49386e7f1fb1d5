"""Where the processor time of a query goes, step by step, and of the whole request: one key, and the top 10 of all.

    python benchmarks/profile_query.py [--states 60000] [--rounds 20]

Everything runs in this process except Redis: requests reach the application as uvicorn would hand them over. Times are
processor time of this process, so that a busy machine changes them little. The constant route is bench_serving.py's.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import report
from fastapi import FastAPI
from made_home import MadeHome, SpeedWriter
from own_redis import own_redis
from questions import ONE_KEY, PARAMETERS, TOP, path_of
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from starlette.requests import Request

from hand_off.speed_views import SpeedViews
from infra.rest.access_keys import add_key
from serving_layer.app import create_app
from serving_layer.engine import QueryEngine
from serving_layer.metrics import ServingMetrics
from serving_layer.query.execute import execute
from serving_layer.query.limits import QueryBudget, execution_limits, query_limits
from serving_layer.query.page_keys import read_page_keys
from serving_layer.query.snapshot import take_snapshot
from serving_layer.rest import formats
from serving_layer.rest.access import ViewAccess
from views.declarations import declared_by

KEYS = 50
"""Asked for in turn."""
QUESTIONS = (ONE_KEY, TOP)


class Steps:
    """The processor time of each step, of each query."""

    def __init__(self) -> None:
        self.by_name: dict[str, list[float]] = {}

    @contextmanager
    def of(self, name: str) -> Any:
        """Measure one step."""
        began = time.process_time()
        yield
        self.by_name.setdefault(name, []).append(time.process_time() - began)


def profile(home: MadeHome, redis_url: str, rounds: int, question: str) -> dict[str, float]:
    """Microseconds of each step, the median of all queries."""
    settings, declared = home.settings, declared_by(home.settings)
    name = f"bench-{QUESTIONS.index(question)}"
    secret = b64encode(f"{name}:{add_key(settings.home, name, ['query'])}".encode())
    headers = [(b"authorization", b"Basic " + secret), (b"host", b"localhost")]
    asked = (PARAMETERS[question] * KEYS)[:KEYS]
    limits, steps = query_limits(settings), Steps()
    engine = QueryEngine(settings, declared, execution_limits(settings))
    access, metrics = ViewAccess(settings, declared.views, engine.undeclared_views), ServingMetrics(dict)
    scope = {"type": "http", "method": "GET", "path": "/views/reference/query", "headers": headers}

    def query(parameters: dict[str, str]) -> None:
        with steps.of("check the access key"):
            access.view(Request(scope), "reference")
        with steps.of("metrics"), metrics.timing(["reference"]) as labels:
            labels["outcome"] = "answered"
        with steps.of("find the served run, parse"):
            parsed = engine.parse("reference", list(parameters.items()), now=time.time(), limits=limits)
        with steps.of("plan"):
            planned = engine._queries.plan(parsed)
        readers = engine._readers[parsed.view.source.name]
        with ExitStack() as held:
            if planned.rank is None:
                with steps.of("read the speed view"):
                    snapshot = take_snapshot(readers, [planned], held)
            else:
                with steps.of("choose the keys, read the speed view"):
                    (planned,), snapshot = read_page_keys(readers, [planned], held)
            with steps.of("read the batch view, merge, present"):
                budget = QueryBudget(engine.limits, time.monotonic() + 30)
                (states,) = snapshot.states([planned])
                result = execute(planned, snapshot, states, budget, engine._cache)
        with steps.of("write JSON"):
            formats.body(result, "json")

    async def requests() -> None:
        app = create_app(settings, declared, engine)
        constant = FastAPI()
        client = AsyncRedis.from_url(redis_url)

        @constant.get("/constant")
        async def answer() -> dict[str, int]:
            await client.get("constant")
            return {"hits": 1}

        for number in range(rounds + 1):
            for parameters in asked:
                path, _, text = path_of(parameters).partition("?")
                whole = {**_SCOPE, "path": path, "query_string": text.encode(), "headers": headers}
                with steps.of("the whole request") if number else ExitStack():
                    await _request(app, whole)
                with steps.of("the constant route") if number else ExitStack():
                    await _request(constant, {**_SCOPE, "path": "/constant", "query_string": b"", "headers": headers})
        await client.aclose()

    for parameters in asked:
        query(parameters)
    steps.by_name.clear()
    for _ in range(rounds):
        for parameters in asked:
            query(parameters)
    asyncio.run(requests())
    engine.close()
    return {step: median(times) * 1e6 for step, times in steps.by_name.items()}


_SCOPE = {
    "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
    "root_path": "", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
}  # fmt: skip


async def _request(app: Callable[..., Awaitable[None]], scope: dict[str, Any]) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start" and message["status"] != 200:
            raise SystemExit(f"status {message['status']} of {scope['path']}")

    await app({**scope, "raw_path": scope["path"].encode()}, receive, send)


def _table(question: str, steps: dict[str, float]) -> str:
    floor = steps["the constant route"]
    rows = [(name, f"{each:,.0f} µs", f"{each / floor:.2f}") for name, each in steps.items()]
    return report.table((question, "processor time", "over the constant route's"), *rows)


def main() -> None:
    """Print the tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--states", type=int, default=60_000)
    options.add_argument("--rounds", type=int, default=20)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, own_redis(folder) as url:
        home = MadeHome(Path(folder) / "made", given.states, 30, redis_url=url)
        home.make(lambda function, every: list(map(function, every)))
        with Redis.from_url(url) as client:
            speed_views = SpeedViews(client, home.view.source.name)
            SpeedWriter(speed_views, home.view, home.folder, home.an_hour).fill(2)
        found = {question: profile(home, url, given.rounds, question) for question in QUESTIONS}
    text = "\n\n".join(_table(question, steps) for question, steps in found.items())
    what = (
        f"{given.states:,} batch states, medians of {given.rounds * KEYS:,} queries. Processor time of the serving "
        "process, without the HTTP server around it and without Redis. Whole requests are repeated ones; the event "
        "loop answers those for one key. Before queries, plans and proved keys were cached, the whole request for one "
        "key took 4.2 times the constant route's processor time."
    )
    figures = {question: {name: round(each, 1) for name, each in steps.items()} for question, steps in found.items()}
    report.write("profile_query", "Serving layer: where the time of a query goes", {"us": figures}, f"{text}\n\n{what}")


if __name__ == "__main__":
    main()
