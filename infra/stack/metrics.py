"""The supervisor's metrics: which services are ready, how often each was restarted and why."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from infra.errors import InfraError
from infra.home import Home, read_json
from infra.metrics import new_registry, serve_metrics
from infra.settings import Settings
from infra.stack.child import Cause, Child
from infra.stack.ports import LOOPBACK

log = structlog.get_logger()


class SupervisorMetrics(Collector):
    """Reads the children at each scrape."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = children

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """The metrics of this moment; the registry calls it at each scrape."""
        ready = GaugeMetricFamily(
            "tidemark_service_ready", "1 where a service is ready with all that it does.", labels=["service"]
        )
        restarts = CounterMetricFamily(
            "tidemark_service_restarts",
            "Restarts of a service by cause: crash, hang, slow_start, request.",
            labels=["service", "cause"],
        )
        silent = GaugeMetricFamily(
            "tidemark_service_silent_seconds",
            "Seconds since a service last showed a sign of life; it is killed at hang_timeout_s.",
            labels=["service"],
        )
        for child in self._children:
            name = child.service.name
            ready.add_metric([name], float(child.is_whole))
            silent.add_metric([name], child.life.silent_s)
            for cause in Cause:
                restarts.add_metric([name, str(cause)], child.ends[cause])
        clock = GaugeMetricFamily(
            "tidemark_clock_timestamp_seconds", "The clock of this machine, in seconds since 1970.", time.time()
        )
        yield from (ready, restarts, silent, clock)


@contextmanager
def served_metrics(settings: Settings, children: Sequence[Child]) -> Iterator[None]:
    """Serve them on the home's port while the context lasts. A port that is taken costs the metrics, not the stack."""
    ports = read_json(Home(settings.home).ports_file) or {}
    port = settings.supervisor_metrics_port or ports.get("supervisor_metrics_port")
    if port is None:  # services of a test's own
        yield
        return
    registry = new_registry("supervisor")
    registry.register(SupervisorMetrics(children))
    with ExitStack() as held:
        try:
            address = held.enter_context(serve_metrics(registry, LOOPBACK, port))
            log.info("metrics_served", address=address)
        except InfraError as error:
            log.warning("metrics_not_served", reason=str(error))
        yield
