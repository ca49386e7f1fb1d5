"""The services of one machine: Kafka and Redis, each unless a setting names another one, and the layers' processes."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from infra.disk import file_stamp
from infra.home import Home
from infra.java.find import find_java
from infra.java.jars import cached_jars
from infra.process_status import (
    check_alive,
    check_heartbeat,
    check_sources,
    last_error,
    missing_runs,
    refusals,
    status_path,
)
from infra.settings import Settings, child_environment
from infra.stack.addresses import addresses, has_scheduler, wanted_ports, with_addresses
from infra.stack.kafka_broker import kafka_service
from infra.stack.ports import LOOPBACK, choose_ports
from infra.stack.redis_server import redis_service
from infra.stack.service import UTF8, Service

OF_SERVERS = ("kafka_port", "kafka_controller_port", "redis_port")
"""The layers' processes have addresses instead."""
MAX_BODY_BYTES = 65_536
ANSWER_S = 5.0
"""How long a server may take to answer a check."""


def build_services(settings: Settings) -> list[Service]:
    """Everything that `up` runs, in the order in which it is started. Refuses what could not work."""
    home = Home(settings.home)
    home.check_disk(settings.min_free_disk_mb)
    ports = choose_ports(home, wanted_ports(settings), settings.ports_file)
    services = []
    if not settings.redis_url:
        services.append(redis_service(home, ports["redis_port"], settings.redis_max_memory_mb))
    if not settings.kafka_bootstrap:
        java, jars = find_java(settings.java_home), cached_jars(settings.jars_dir)
        services.append(kafka_service(settings, home, java, jars, ports))
    after = tuple(service.name for service in services)
    # Every layer's process gets the chosen ports and addresses, so that it need not look for them.
    actual = with_addresses(settings).model_copy(
        update={name: port for name, port in ports.items() if name not in OF_SERVERS}
    )
    if settings.collector_enabled:
        services.append(collector_service(actual, after))
    if settings.archiver_enabled:
        services.append(archiver_service(actual, (*after, "collector") if settings.collector_enabled else after))
    if settings.speed_enabled:
        services.append(speed_service(actual, (*after, "collector") if settings.collector_enabled else after))
    if has_scheduler(settings):
        services.append(scheduler_service(actual, after))
    if settings.serving_enabled:
        services.append(serving_service(actual, tuple(name for name in after if name == "redis")))
    if settings.alerts_enabled:
        services.append(alerts_service(actual, (*after, "collector") if settings.collector_enabled else after))
    return services


def collector_service(settings: Settings, after: tuple[str, ...]) -> Service:
    """The collector: events by REST into Kafka."""
    return _rest_service(settings, "collector", "master_dataset.collector", addresses(settings).collector, after)


def archiver_service(settings: Settings, after: tuple[str, ...]) -> Service:
    """The archiver: from Kafka into the master dataset. It starts after the collector, which makes the topics."""
    address = str(settings.master_dir or settings.home / "master")
    # Not needed: a damaged table is repaired from Kafka, which must be up for that.
    return _worker_service(settings, "archiver", "master_dataset.archiver", address, check_heartbeat, after, refusals)


def speed_service(settings: Settings, after: tuple[str, ...]) -> Service:
    """The speed layer: from Kafka into the real-time views in Redis."""
    # Not needed: answers get older without it, not wrong.
    return _worker_service(settings, "speed", "speed_layer", settings.redis_url, check_sources, after, refusals)


def scheduler_service(settings: Settings, after: tuple[str, ...]) -> Service:
    """The scheduler: starts batch runs when they are due. Its address is that of its metrics."""
    address = f"http://{LOOPBACK}:{settings.scheduler_metrics_port}/metrics"
    # Not needed: answers get older without it, not wrong. A run that is missing is no reason to start another process.
    return _worker_service(settings, "scheduler", "batch_layer.scheduler", address, check_alive, after, missing_runs)


def serving_service(settings: Settings, after: tuple[str, ...]) -> Service:
    """The serving layer: answers by REST, from the batch views' files and the speed views in Redis."""
    return _rest_service(settings, "serving", "serving_layer", addresses(settings).serving, after)


def alerts_service(settings: Settings, after: tuple[str, ...]) -> Service:
    """The alert process: evaluates alerts when answers change, and notifies. Its address is that of its metrics."""
    address = f"http://{LOOPBACK}:{settings.alerts_metrics_port}/metrics"
    # Not needed: answers do not depend on it, and it evaluates later what it missed.
    return _worker_service(settings, "alerts", "serving_layer.alerts", address, check_heartbeat, after, refusals)


def _rest_service(settings: Settings, name: str, module: str, address: str, after: tuple[str, ...]) -> Service:
    """A process that answers by REST, with its readiness at /ready."""
    server = RestCheck(address)
    return Service(
        name=name,
        command=(sys.executable, "-P", "-m", module),
        address=address,
        check=server.check,
        after=after,
        environment=child_environment(settings),
        problems=server.problems,
        pulse=server.pulse,
    )


def _worker_service(
    settings: Settings,
    name: str,
    module: str,
    address: str,
    check: Callable[[Path], str | None],
    after: tuple[str, ...],
    problems: Callable[[Path], str] = lambda _file: "",
) -> Service:
    """A process that writes its status every second, and that the others can do without."""
    status_file = status_path(settings, name)
    return Service(
        name=name,
        command=(sys.executable, "-P", "-m", module),
        address=address,
        check=lambda: check(status_file),
        prepare=lambda: status_file.unlink(missing_ok=True),  # an earlier process's heartbeat is none of this one
        after=after,
        environment={**child_environment(settings), **UTF8},
        is_needed=False,
        last_error=lambda: last_error(status_file),
        problems=lambda: problems(status_file),
        pulse=lambda: file_stamp(status_file),  # not the time in it: the system's clock may be set
        works_silently=True,  # a large commit, the first look at a long table
    )


class RestCheck:
    """How the supervisor asks a REST server: by `/ready`, whose member `problems` names what does not work."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._has_answered = False
        self._problems = ""

    def check(self) -> str | None:
        """None when the server is ready; otherwise what it says instead."""
        status, body = _get(self._address, "/ready")
        self._has_answered = status is not None
        if status != 200:
            return body if status is None else f"/ready answered {status}: {body[:500]}"
        self._problems = _problems_in(body)
        return None

    def problems(self) -> str:
        """What a ready server says of itself, a line each."""
        return self._problems

    def pulse(self) -> object | None:
        """Any answer is a sign of life, also that it is not ready: it may wait for Kafka, and restarting is no help."""
        return object() if self._has_answered or _get(self._address, "/health")[0] is not None else None


def _problems_in(body: str) -> str:
    with suppress(ValueError, AttributeError):
        found = json.loads(body).get("problems")
        if isinstance(found, list):
            return "\n".join(map(str, found))
    return ""


def _get(address: str, path: str) -> tuple[int | None, str]:
    """Status and body of an answer; None and the reason where there is none."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=ANSWER_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(MAX_BODY_BYTES).decode("utf-8", errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return None, f"no answer from {address}: {error}"
    finally:
        connection.close()
