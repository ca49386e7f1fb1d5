"""The metrics of a process, in the text format of Prometheus.

A REST server answers `GET /metrics` itself (`infra/rest`); other processes do so on a loopback port of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Info, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from infra.errors import InfraError
from infra.process_status import ProcessStatus
from infra.stack.ports import holder_of
from infra.version import VERSION


def new_registry(process: str) -> CollectorRegistry:
    """A registry with the metrics of every process: its name, and on Linux its memory, time and open files.

    Each process makes its own; the global one of the library would keep what another test or thread put there.
    """
    registry = CollectorRegistry()
    Info("tidemark", "Which process this is, of which version.", registry=registry).info(
        {"process": process, "version": VERSION}
    )
    ProcessCollector(registry=registry)
    return registry


class PerSource(NamedTuple):
    """One number of each source, computed from the source's status and the time; None: it has none."""

    name: str
    help: str
    value: Callable[[Mapping[str, Any], float], float | None]
    is_counter: bool = False


class SourceMetrics(Collector):
    """Reads a process's status at each scrape, so that the numbers are current."""

    def __init__(self, prefix: str, numbers: Sequence[PerSource], status: Callable[[], ProcessStatus]) -> None:
        self._prefix, self._numbers, self._status = prefix, numbers, status

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """The metrics of this moment; the registry calls it at each scrape."""
        yield from self._families(self._status())

    def _families(self, status: ProcessStatus) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        for number in self._numbers:
            kind = CounterMetricFamily if number.is_counter else GaugeMetricFamily
            family = kind(f"{self._prefix}_{number.name}", number.help, labels=["source"])
            for name, source in status.sources.items():
                if (value := number.value(source, status.at)) is not None:
                    family.add_metric([name], value)
            yield family


@contextmanager
def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> Iterator[str]:
    """Serve a registry from a thread of its own for as long as the context lasts; gives the address.

    There is no access key: let `host` be loopback. Port 0 is any free one.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise InfraError(
            f"Metrics cannot be served on {host}:{port} ({error.strerror}), which is held by {holder_of(port)}. "
            "End that process, or choose another port: `tidemark config` lists the settings."
        ) from None
    try:
        yield f"http://{host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
