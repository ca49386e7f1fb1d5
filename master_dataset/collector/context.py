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
from infra.settings import Settings
from infra.threads import Threads
from master_dataset.collector.free_disk import FreeDisk
from master_dataset.collector.limits import Budget, Limits
from master_dataset.collector.metrics import CollectorMetrics
from master_dataset.collector.offset_bases import OffsetBases
from master_dataset.collector.permissions import Permissions
from master_dataset.collector.producer import AckedProducer
from master_dataset.collector.topic_cache import TopicCache
from master_dataset.collector.validators import Validators
from views.declarations import Declarations

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
    bases: OffsetBases
    parsing: Threads  # of large bodies
    fetching: Threads
    metrics: CollectorMetrics
    validators: Validators

    def allow(
        self, request: Request, *scopes: str, authorization: str | None = None, needs_room: bool = True
    ) -> Permissions:
        """What the request's key may use. Raises a problem unless it has one of the scopes.

        And where events are to be stored, unless there is room for them; what ends a transaction, or only looks at it,
        needs none. `authorization` is used instead of the request's header, for protocols that send a key elsewhere.
        """
        allowed = Permissions(self.declarations, self.access.check(request, *scopes, authorization=authorization))
        if needs_room and scopes == ("produce",):
            self.disk.check()
        return allowed


def get_and_post(routes: APIRouter, path: str, **options: Any) -> Callable[[Handler], Handler]:
    """Register a handler for both methods, each with an operation of its own in OpenAPI."""

    def register(handler: Handler) -> Handler:
        for method in ("GET", "POST"):
            routes.add_api_route(path, handler, methods=[method], **options)
        return handler

    return register
