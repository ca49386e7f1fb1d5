"""What the collector's routes share: created once by `create_app`, for one event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from infra.clients.kafka_admin import KafkaAdmin
from infra.rest.access import Access
from infra.rest.problems import Problem
from infra.settings import Settings
from infra.threads import Threads
from master_dataset.collector.free_disk import FreeDisk
from master_dataset.collector.limits import Budget, Limits
from master_dataset.collector.metrics import CollectorMetrics
from master_dataset.collector.producer import AckedProducer
from master_dataset.collector.topic_cache import TopicCache
from views.declarations import Declarations
from views.source import Source

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Collector:
    """The collector's parts."""

    settings: Settings
    declarations: Declarations
    kafka_config: dict[str, Any]
    admin: KafkaAdmin
    access: Access
    limits: Limits
    budget: Budget
    disk: FreeDisk
    producer: AckedProducer
    topics: TopicCache
    parsing: Threads  # of large bodies
    fetching: Threads
    metrics: CollectorMetrics
    validators: dict[str, Callable[[Any], None]]

    def source(self, name: str) -> Source:
        """A declared source, or a problem that names those there are."""
        source = self.declarations.sources.get(name)
        if source is None:
            known = ", ".join(sorted(self.declarations.sources)) or "none"
            raise Problem(404, "unknown-source", f"There is no source {name[:100]!r}. There are: {known}.")
        return source

    def allow(self, request: Request, *scopes: str) -> None:
        """Raise a problem unless the request's key has one of the scopes, and what it sends can be stored."""
        self.access.check(request, *scopes)
        if "produce" in scopes:
            self.disk.check()


def get_and_post(routes: APIRouter, path: str, **options: Any) -> Callable[[Handler], Handler]:
    """Register a handler for both methods, each with an operation of its own in OpenAPI."""

    def register(handler: Handler) -> Handler:
        for method in ("GET", "POST"):
            routes.add_api_route(path, handler, methods=[method], **options)
        return handler

    return register
