"""The serving layer's application: `create_app(settings, declarations)` connects the query engine with all routes.

The routes are in rest/, push/, alerts/rest.py and dashboard/. rest/openapi/document.py describes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from infra.clients.loop_redis import LoopRedis
from infra.rest.problems import Problem, install_problems
from infra.rest.response_counter import ResponseCounter
from infra.rest.responses import add_health, add_metrics, json_response
from infra.settings import Settings
from infra.stack.addresses import addresses
from infra.threads import Threads
from infra.version import VERSION
from serving_layer.alerts.rest import AlertReader, alert_routes
from serving_layer.dashboard.files import API_PAGE, dashboard_routes
from serving_layer.dashboard.sessions import session_routes
from serving_layer.engine import QueryEngine
from serving_layer.errors import ServingError
from serving_layer.metrics import ServingMetrics
from serving_layer.push.live_queries import LiveQueries
from serving_layer.push.registry import Registry
from serving_layer.query.limits import execution_limits, query_limits
from serving_layer.rest.access import ViewAccess
from serving_layer.rest.context import Serving, problem_of
from serving_layer.rest.openapi.document import describe
from serving_layer.rest.queries import query_routes
from serving_layer.rest.repeated_requests import RepeatedRequests
from serving_layer.rest.schemas import schema_routes
from serving_layer.rest.sources import source_routes
from serving_layer.rest.views import compared_views, freshness
from views.declarations import Declarations


def create_app(settings: Settings, declarations: Declarations, engine: QueryEngine | None = None) -> FastAPI:
    """The serving layer for these settings and views. It needs no JVM, and Kafka for schemas alone."""
    engine = engine or QueryEngine(settings, declarations, execution_limits(settings))
    limits = query_limits(settings)
    serving = Serving(
        settings=settings,
        declarations=declarations,
        access=ViewAccess(settings, declarations.views, engine.undeclared_views),
        limits=limits,
        engine=engine,
        answers=Threads(
            "answer", settings.serving_threads, max(0, settings.serving_max_queries - settings.serving_threads)
        ),
        waits=Threads("wait", settings.serving_max_waiting),
        metrics=ServingMetrics(
            lambda: _freshness_by_source(engine, declarations), views=lambda: compared_views(engine, declarations)
        ),
    )
    redis = LoopRedis(settings, addresses(settings).redis, settings.serving_redis_timeout_s)
    registry = Registry(settings.serving_live_subscribers, serving.metrics.live)
    live_queries, alerts = LiveQueries(serving, registry), AlertReader(serving)

    @asynccontextmanager
    async def running(_app: FastAPI) -> AsyncIterator[None]:
        yield
        registry.close()
        live_queries.close()
        serving.answers.close()
        serving.waits.close()
        redis.close()
        engine.close()
        alerts.close()

    app = FastAPI(
        title="Tidemark serving layer",
        version=VERSION,
        lifespan=running,
        redirect_slashes=False,
        openapi_url=None,  # below: it shows each key its own views
    )
    app.state.live, app.state.live_queries = registry, live_queries
    install_problems(app)
    app.add_exception_handler(ServingError, _on_serving_error)
    app.router.routes.extend(
        [
            *query_routes(serving), *live_queries.routes(), *source_routes(serving), *session_routes(serving),
            *alert_routes(alerts, registry), *schema_routes(serving), *_description_routes(serving),
            *dashboard_routes(),
        ]
    )  # fmt: skip
    add_health(app, lambda: _ready(serving))
    add_metrics(app, serving.access.keys, serving.metrics.registry)
    app.add_middleware(ResponseCounter, count=serving.metrics.count_response)
    # Outermost, because it answers without the others.
    app.add_middleware(RepeatedRequests, serving=serving, redis=redis, max_mb=settings.serving_cache_mb / 2)
    return app


async def _on_serving_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ServingError)  # noqa: S101  registered for this class; said for the type checker
    return problem_of(error).response()


def _description_routes(serving: Serving) -> list[Route]:
    """`/openapi.json` for a key: it names the views that the key may see. `/docs` redirects to the API page."""
    described: dict[tuple[str, ...], dict[str, Any]] = {}

    async def openapi(request: Request) -> Response:
        views = serving.access.views(request)
        versions = tuple(view.hash for view in views.values())
        if versions not in described:
            described[versions] = describe(views.values(), serving.limits)
        return json_response(described[versions])

    async def docs(_request: Request) -> Response:
        return RedirectResponse(API_PAGE)

    return [Route("/openapi.json", openapi), Route("/docs", docs)]


def _freshness_by_source(engine: QueryEngine, declarations: Declarations) -> dict[str, dict[str, Any]]:
    """The freshness of each source that has views."""
    return {name: freshness(engine, name) for name in declarations.sources if declarations.views_of(name)}


async def _ready(serving: Serving) -> dict[str, Any]:
    """Whether queries can be answered. This needs no key, so it names no source.

    Without Redis answers are degraded. Without the batch views of any source there are none.
    """
    by_source = await asyncio.to_thread(_freshness_by_source, serving.engine, serving.declarations)
    readable = [fresh for fresh in by_source.values() if fresh["run"] is not None]
    if by_source and not readable:
        detail = "The batch views of no source can be read. GET /views says why; it needs a key."
        raise Problem(503, "not-ready", detail, retry_after_s=1)
    frozen = "stand still for some sources, because of a rollback" if any(f["frozen"] for f in readable) else ""
    return {
        "batch": "readable" if len(readable) == len(by_source) else "not of all sources",
        "speed": "degraded" if any(fresh["degraded"] for fresh in readable) else "readable",
        **({"answers": frozen} if frozen else {}),
    }
