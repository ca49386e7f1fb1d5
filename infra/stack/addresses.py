"""Where the services of one installation listen: the ports that `up` wants, and the addresses that follow."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import SecretStr

from infra.clients.kafka import kafka_login
from infra.clients.redis import OWN_USER
from infra.home import Home, read_json
from infra.settings import Settings
from infra.stack.ports import LOOPBACK


class Addresses(NamedTuple):
    """Where everything is."""

    kafka: str
    redis: str
    collector: str
    serving: str
    has_redis: bool
    """False: none is named, and none was ever started on this home."""


def wanted_ports(settings: Settings) -> dict[str, int]:
    """The ports that our own servers need, as the settings give them; 0 stands for any."""
    ports: dict[str, int] = {}
    if not settings.kafka_bootstrap:
        ports |= {"kafka_port": settings.kafka_port, "kafka_controller_port": settings.kafka_controller_port}
    if not settings.redis_url:
        ports |= {"redis_port": settings.redis_port}
    if settings.collector_enabled:
        ports |= {"collector_port": settings.collector_port}
    if settings.serving_enabled:
        ports |= {"serving_port": settings.serving_port}
    if settings.archiver_enabled:
        ports |= {"archiver_metrics_port": settings.archiver_metrics_port}
    if settings.speed_enabled:
        ports |= {"speed_metrics_port": settings.speed_metrics_port}
    if settings.alerts_enabled:
        ports |= {"alerts_metrics_port": settings.alerts_metrics_port}
    if has_scheduler(settings):
        ports |= {"scheduler_metrics_port": settings.scheduler_metrics_port}
    return ports | {"supervisor_metrics_port": settings.supervisor_metrics_port}


def has_scheduler(settings: Settings) -> bool:
    """Whether `up` runs the scheduler."""
    return settings.scheduler_enabled and bool(settings.batch_schedule)


def addresses(settings: Settings) -> Addresses:
    """Where the stack of this home is, or will be once `up` has chosen its ports."""
    ports = read_json(Home(settings.home).ports_file) or {}
    kafka_port = settings.kafka_port or ports.get("kafka_port", 0)
    redis_port = settings.redis_port or ports.get("redis_port", 0)
    collector_port = settings.collector_port or ports.get("collector_port", 0)
    serving_port = settings.serving_port or ports.get("serving_port", 0)
    return Addresses(
        kafka=settings.kafka_bootstrap or f"{LOOPBACK}:{kafka_port}",
        redis=settings.redis_url or own_redis(redis_port),
        collector=f"http://{_reachable(settings.collector_host)}:{collector_port}",
        serving=f"http://{_reachable(settings.serving_host)}:{serving_port}",
        has_redis=bool(settings.redis_url or redis_port),
    )


def with_addresses(settings: Settings) -> Settings:
    """The settings for another process, with addresses and the login of our own broker: it need not look for them."""
    where = addresses(settings)
    update: dict[str, Any] = {"kafka_bootstrap": where.kafka, "redis_url": where.redis}
    login = kafka_login(settings)
    if not settings.kafka_bootstrap and login.password is not None:
        update |= {
            "kafka_security_protocol": login.protocol,
            "kafka_sasl_mechanism": login.mechanism,
            "kafka_username": login.username,
            "kafka_password": SecretStr(login.password),
        }
    return settings.model_copy(update=update)


def own_redis(port: int) -> str:
    """The address of our own Redis. It names the user whose password is in the home."""
    return f"redis://{OWN_USER}@{LOOPBACK}:{port}/0"


def _reachable(host: str) -> str:
    """A server on all addresses is reached on loopback."""
    return LOOPBACK if host in ("0.0.0.0", "::") else host  # noqa: S104  compared, not bound
