"""The serving layer on a real port of this process, with answers that a test directs: slow, changing, or failing.

What answers say is not tried here (tests of the engine do that, and the system tests), but what becomes of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import uvicorn
from fastapi import FastAPI

from infra.rest.access_keys import add_key
from infra.settings import Settings, load_settings
from infra.stack.ports import LOOPBACK
from serving_layer.app import create_app
from serving_layer.engine import QueryEngine, SourceStatus
from serving_layer.errors import Stale
from serving_layer.query.model import Query
from serving_layer.query.provenance import exactness
from serving_layer.query.result import BatchPart, Provenance, Result, ResultRow
from views.declarations import Declarations, load_declarations


class Directed(QueryEngine):
    """Answers one row for each period, with `number` for every answer, when `may_answer` lets it."""

    def __init__(self, settings: Settings, declarations: Declarations) -> None:
        super().__init__(settings, declarations)
        self.declarations = declarations
        self.number = 1
        self.moved = 0
        """How often the cuts moved on, and no row changed."""
        self.is_degraded = False
        self.failure: Exception | None = None
        self.failures: dict[str, Exception] = {}
        """By name of a view."""
        self.too_old = False
        """Whether answers are older than any question wants that says how old they may be."""
        self.status_failure: Exception | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked: list[Query] = []

    def served_view(self, name: str) -> Any:
        return self.declarations.views[name]

    def status(self, source: str) -> SourceStatus:
        if self.status_failure is not None:
            raise self.status_failure
        return SourceStatus(
            BatchPart(3, {0: 17}, 1_772_323_200.0, read=False), None, "No Redis." if self.is_degraded else None
        )

    def count_groups(self, name: str) -> int:
        return 42

    def data_range(self, name: str) -> tuple[int, int] | None:
        return None

    def etag(self, question: Query) -> str:
        self.asked.append(question)
        self.may_answer.wait(30)
        failure = self.failure or self.failures.get(question.view.name)
        if failure is not None:
            raise failure
        return f"{self.number}-{self.moved}-{question.range.start}-{question.range.end}"

    def execute(self, question: Query) -> Result:
        etag = self.etag(question)
        if self.too_old and question.freshness.max_staleness_s is not None:
            raise Stale("They are older.")
        view = question.view
        meta = Provenance(
            view=view.name, version=view.hash[:16], source=view.source.name, range=question.range, grain=question.grain,
            tz=question.tz, batch=BatchPart(3, {0: 17}, 1_772_323_200.0, True), speed=None, cut={0: 17},
            complete=not self.is_degraded, degraded=self.is_degraded, why="No Redis." if self.is_degraded else None,
            answers={name: exactness(view, name) for name in question.answers},
            etag=etag,
        )  # fmt: skip
        rows = [
            ResultRow(period, tuple("x" for _ in question.by), dict.fromkeys(question.answers, self.number))
            for period in question.periods
        ]
        return Result(question.by, rows, meta)

    def execute_all(self, questions: Any) -> list[Result]:
        return [self.execute(question) for question in questions]


class Served(NamedTuple):
    """A running serving layer. `client` has the key `admin`, which may do everything."""

    app: FastAPI
    engine: Directed
    home: Path
    address: str
    client: httpx.Client
    stop: Callable[[], None]

    def key(self, name: str, scopes: list[str], views: list[str] | None = None, **limits: list[str]) -> tuple[str, str]:
        """Name and secret of a new key."""
        return name, add_key(self.home, name, scopes, views, **limits)  # type: ignore[arg-type]  # patterns


@contextmanager
def serving(home: Path, **overrides: Any) -> Iterator[Served]:
    """Serve the views of `web` on a free port."""
    home.mkdir(exist_ok=True)
    settings = load_settings(home=home, **overrides)
    declarations = load_declarations(examples="web")
    engine = Directed(settings, declarations)
    app = create_app(settings, declarations, engine)
    with running(app) as (address, stop):
        secret = add_key(home, "admin", ["query", "metrics", "admin"])
        with httpx.Client(base_url=address, auth=("admin", secret), timeout=30) as client:
            yield Served(app, engine, home, address, client, stop)


@contextmanager
def running(app: FastAPI) -> Iterator[tuple[str, Callable[[], None]]]:
    """Run an application on a free port; gives its address, and what stops it as a signal would."""
    config = uvicorn.Config(
        app, host=LOOPBACK, port=0, log_level="warning", ws="none", lifespan="on", timeout_graceful_shutdown=20
    )
    server = uvicorn.Server(config)
    started = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        running = asyncio.create_task(server.serve())
        while not server.started and not running.done():
            await asyncio.sleep(0.005)
        started.set()
        await running

    def stop() -> None:
        if hasattr(app.state, "live") and not server.should_exit:
            loops[0].call_soon_threadsafe(app.state.live.close)  # as the process does at a signal
        server.should_exit = True

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(30)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://{LOOPBACK}:{port}", stop
    finally:
        stop()
        thread.join(30)
        assert not thread.is_alive(), "it did not stop"
