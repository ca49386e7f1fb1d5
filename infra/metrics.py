"""What a process measures of itself, in the text format of Prometheus: `GET /metrics` on a loopback port of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Info, ProcessCollector, start_http_server

from infra.errors import InfraError
from infra.ports import holder_of
from infra.version import VERSION


def new_registry(process: str) -> CollectorRegistry:
    """A registry with what every process tells: which one it is, and on Linux its memory, time and open files.

    Each process makes its own; the global one of the library would keep what another test or thread put there.
    """
    registry = CollectorRegistry()
    Info("tidemark", "Which process this is, of which version.", registry=registry).info(
        {"process": process, "version": VERSION}
    )
    ProcessCollector(registry=registry)
    return registry


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
