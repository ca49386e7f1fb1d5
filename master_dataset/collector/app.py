"""The collector's application: `create_app(settings, declarations)` connects the producer with all routes.

Each router is in a module of its own, here and in kafka_rest/. While it runs, the application also creates the
declared topics that are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from infra.clients.kafka import librdkafka_config
from infra.clients.kafka_admin import KafkaAdmin
from infra.metrics import new_registry
from infra.rest.access import SECURITY_SCHEMES, Access
from infra.rest.key_metrics import KeyMetrics
from infra.rest.problems import Problem, install_problems
from infra.rest.response_counter import ResponseCounter
from infra.rest.responses import add_health, add_metrics
from infra.settings import Settings
from infra.stack.addresses import addresses
from infra.threads import Threads
from infra.version import VERSION
from master_dataset.collector.context import Collector
from master_dataset.collector.dead_letters import dead_routes
from master_dataset.collector.direct_events import DirectEvents
from master_dataset.collector.doors.cloudevents import cloudevents_routes
from master_dataset.collector.doors.otlp_logs import otlp_log_routes
from master_dataset.collector.doors.posthog import posthog_routes
from master_dataset.collector.doors.segment import segment_routes
from master_dataset.collector.doors.syslog_server import SyslogMetrics, SyslogServer
from master_dataset.collector.doors.w3c_log import w3c_log_routes
from master_dataset.collector.events import event_routes, store
from master_dataset.collector.free_disk import FreeDisk
from master_dataset.collector.kafka_rest.admin import admin_routes
from master_dataset.collector.kafka_rest.consume import consuming_routes
from master_dataset.collector.kafka_rest.consumers import Consumers
from master_dataset.collector.kafka_rest.embedded_schemas import EmbeddedSchemas
from master_dataset.collector.kafka_rest.fetch import reading_routes
from master_dataset.collector.kafka_rest.produce import produce_routes
from master_dataset.collector.kafka_rest.transaction_routes import transaction_routes
from master_dataset.collector.kafka_rest.transactions import Transactions
from master_dataset.collector.kafka_rest.v2 import v2_routes
from master_dataset.collector.kafka_rest.v3 import v3_routes
from master_dataset.collector.limits import Budget, Limits
from master_dataset.collector.metrics import CollectorMetrics
from master_dataset.collector.offset_bases import OffsetBases
from master_dataset.collector.producer import AckedProducer
from master_dataset.collector.schema_registry.routes import registry_routes
from master_dataset.collector.topic_cache import TopicCache
from master_dataset.collector.validators import Validators
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.topics import apply_topics, compare_topics, existing_topics, plan_topics
from master_dataset.registry.noted_ids import NotedIds
from master_dataset.registry.registry import Registry
from master_dataset.registry.saved_records import put_back, restored_file
from master_dataset.registry.topic import SchemasTopic
from views.declarations import Declarations

RETRY_TOPICS_EVERY_S = 1.0
READY_TIMEOUT_S = 3.0
PARSING_THREADS = 2  # more would only share one interpreter's time
MAX_FETCHES = 32

log = structlog.get_logger()


def create_app(settings: Settings, declarations: Declarations) -> FastAPI:
    """The collector for these settings and sources. It connects to Kafka when it starts."""
    bootstrap = addresses(settings).kafka
    config, admin = librdkafka_config(settings, bootstrap), KafkaAdmin(settings, bootstrap)
    probe = admin.with_timeout(READY_TIMEOUT_S)
    limits = Limits.of(settings)
    budget, registry, access = Budget(limits.buffer), new_registry("collector"), Access(settings)
    disk = FreeDisk.of(settings)
    collector = Collector(
        settings=settings,
        declarations=declarations,
        kafka_config=config,
        admin=admin,
        access=access,
        limits=limits,
        budget=budget,
        disk=disk,
        producer=AckedProducer(config, settings.collector_ack_timeout_s, limits.buffer),
        topics=TopicCache(admin),
        bases=OffsetBases(settings, admin, declarations.sources.values()),
        parsing=Threads("parse", PARSING_THREADS),
        fetching=Threads("fetch", MAX_FETCHES),
        metrics=CollectorMetrics(registry, budget, disk),
        validators=Validators(settings, declarations.sources.values()),
    )
    consumers = Consumers(
        config,
        settings.collector_max_consumers,
        settings.collector_consumer_idle_s,
        settings.collector_max_body_mb * 1_000_000,
        settings.collector_max_consumers_per_key,
    )
    schemas = _registry(settings, config, admin) if settings.registry_enabled else None
    embedded = EmbeddedSchemas(collector, schemas)
    transactions = Transactions(
        config,
        settings.collector_max_transactions,
        settings.collector_transaction_timeout_s,
        settings.collector_ack_timeout_s,
    )
    has_topics = asyncio.Event()
    syslog = SyslogServer.of(collector)
    if syslog is not None:
        registry.register(SyslogMetrics(lambda: syslog.received, syslog.all_dropped))

    @asynccontextmanager
    async def running(_app: FastAPI) -> AsyncIterator[None]:
        collector.producer.start()
        disk.look()  # before the first request
        jobs = [
            _create_topics(collector, has_topics),
            consumers.sweep(),
            transactions.sweep(),
            disk.watch(),
            collector.bases.watch(),
            collector.validators.watch(),
        ]
        if schemas is not None:
            jobs.append(schemas.topic.follow())
        tasks = [asyncio.create_task(job) for job in jobs]
        if syslog is not None:
            await syslog.start()
        yield
        if syslog is not None:
            await syslog.close()  # what has arrived is stored with the producer
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        await transactions.close()
        await consumers.close()
        await collector.producer.close()

    app = FastAPI(
        title="Tidemark collector",
        version=VERSION,
        description="Events and messages into Kafka, acknowledged, and back out again.",
        lifespan=running,
        redirect_slashes=False,
        docs_url=None,  # FastAPI's pages load from elsewhere; /openapi.json is here
        redoc_url=None,
    )
    app.state.disk = disk
    install_problems(app)
    for routes in (
        produce_routes(collector),
        v3_routes(collector, embedded),
        event_routes(collector),
        cloudevents_routes(collector),
        otlp_log_routes(collector),  # before Segment's /v1/{call}
        segment_routes(collector),
        posthog_routes(collector),
        w3c_log_routes(collector),
        reading_routes(collector),
        consuming_routes(collector, consumers),
        transaction_routes(collector, transactions, consumers),
        *v2_routes(collector, consumers, embedded),
        dead_routes(collector),
        admin_routes(collector),
    ):
        app.include_router(routes)
    if schemas is not None:
        for routes in registry_routes(collector, schemas):
            app.include_router(routes)
    add_health(app, lambda: _ready(probe, has_topics, disk, schemas, syslog), "/healthz")
    registry.register(KeyMetrics(settings.home))
    add_metrics(app, access, lambda: registry)
    paths = {f"/events/{name}": name for name in declarations.sources}
    app.add_middleware(DirectEvents, store=partial(store, collector), sources=paths)
    app.add_middleware(ResponseCounter, count=collector.metrics.count_response)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]  # FastAPI's own way to change it
    return app


def _registry(settings: Settings, config: dict[str, Any], admin: KafkaAdmin) -> Registry:
    """The registry. In a restored home it begins with the schemas of the backup."""
    fill = partial(put_back, path=restored_file(settings))
    return Registry(SchemasTopic(config, admin, fill), NotedIds.of(settings).read)


async def _create_topics(collector: Collector, done: asyncio.Event) -> None:
    """Create the declared topics that are missing, as soon as Kafka answers; report differences."""
    plans = plan_topics(collector.declarations.sources.values(), collector.settings.dead_letter_retention_days)
    while True:
        try:
            created = await asyncio.to_thread(apply_topics, collector.admin, plans)
            others = [plan for plan in plans if plan.name not in created]  # a broker may not list the new ones yet
            differences = await asyncio.to_thread(compare_topics, collector.admin, others)
        except MasterDatasetError as error:
            log.warning("retrying", step="create topics", error=str(error))
            await asyncio.sleep(RETRY_TOPICS_EVERY_S)
            continue
        for topic in created:
            log.info("created_topic", topic=topic)
        for difference in differences:
            log.warning("topic_differs", **vars(difference), remedy="change the declaration, or PATCH /admin/topics")
        done.set()
        return


async def _ready(
    probe: KafkaAdmin,
    has_topics: asyncio.Event,
    disk: FreeDisk,
    schemas: Registry | None,
    syslog: SyslogServer | None,
) -> dict[str, Any]:
    """Whether events can be stored: Kafka answers and the declared topics exist. `problems` names disks that ran low,
    and why there is no registry: not ready, the collector would be restarted or keep others from starting, which helps
    neither.
    """
    if not has_topics.is_set():
        raise Problem(503, "not-ready", "The declared topics are not created yet.", retry_after_s=1)
    try:
        await asyncio.to_thread(existing_topics, probe)
    except MasterDatasetError as error:
        raise Problem(503, "not-ready", f"Kafka does not answer. {error}", retry_after_s=1) from None
    if schemas is not None and schemas.topic.is_starting:
        raise Problem(503, "not-ready", "The schema registry is still reading its topic.", retry_after_s=1)
    problems = [*disk.low.values(), *filter(None, [schemas and schemas.topic.problem])]
    state: dict[str, Any] = {"problems": problems} if problems else {}
    return state if syslog is None else {**state, "syslog": syslog.status()}


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's description, with the security scheme: everything needs a key."""
    if not app.openapi_schema:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schema.setdefault("components", {})["securitySchemes"] = SECURITY_SCHEMES
        schema["security"] = [{"basic": []}, {"bearer": []}]
        app.openapi_schema = schema
    return app.openapi_schema
