"""Our own Kafka broker as a service: its configuration, its storage, and the disk space it needs."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import uuid
from pathlib import Path

from infra.clients.kafka_admin import check_kafka
from infra.errors import InfraError, ServiceFailed
from infra.home import Home
from infra.java.find import Java
from infra.java.jars import JarSet
from infra.secret_files import write_private
from infra.settings import Settings
from infra.stack.kafka_access import LISTENER, BrokerAccess
from infra.stack.leash import leashed
from infra.stack.ports import LOOPBACK
from infra.stack.service import UTF8, Service

MIN_FREE_MB = 64
"""Free disk without which no broker is started."""


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

    access = BrokerAccess(home) if settings.kafka_auth else None

    def prepare() -> None:
        check_free_disk(home.kafka)
        if not (home.kafka / "data" / "meta.properties").is_file():
            write_private(config, _server_properties(home, ports))
            _format_storage(java_command, config)
        write_private(config, _server_properties(home, ports, access))

    def check() -> str | None:
        missing = access.set_up(bootstrap) if access is not None else None
        return missing or check_kafka(settings, bootstrap)

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
        check=check,
        prepare=prepare,
        works_silently=True,
        recovers_silently=True,  # after a crash it reads the ends of its logs, which takes as long as they are
    )


def check_free_disk(folder: Path) -> None:
    """Refuse to start a broker on a full disk: its recovery cannot write there, takes its own logs for corrupt, and
    empties them; with the log of its metadata every topic is gone. The supervisor retries until there is space.
    """
    free_mb = shutil.disk_usage(folder).free // 2**20
    if free_mb < MIN_FREE_MB:
        raise InfraError(
            f"{str(folder)!r} has {free_mb} MB free, and a broker needs {MIN_FREE_MB} MB to "
            "recover its logs. Free some space; the broker then starts by itself."
        )


def _server_properties(home: Home, ports: dict[str, int], access: BrokerAccess | None = None) -> str:
    data = home.kafka / "data"
    broker, controller = (f"{LOOPBACK}:{ports[name]}" for name in ("kafka_port", "kafka_controller_port"))
    name, protocol = ("PLAINTEXT", "PLAINTEXT") if access is None else (LISTENER, "SASL_PLAINTEXT")
    values = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{name}://{broker},CONTROLLER://{controller}",
        "advertised.listeners": f"{name}://{broker}",
        "listener.security.protocol.map": f"{name}:{protocol},CONTROLLER:{protocol}",
        "log.dirs": str(data),
        # An acknowledged message is on the disk, not only in the page cache. It costs 2 % of the bulk rate.
        "log.flush.interval.messages": 1,
        # Topics come from declarations: a misspelt name is an error, not a new topic.
        "auto.create.topics.enable": "false",
        # One broker: nothing can be replicated, and there is no follower to wait for.
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        # After kill -9 the controller keeps the dead broker registered for this long before the new one may register.
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
    }
    if access is not None:
        values |= access.properties()
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
    """A random id that does not start with a dash, which the tool would take for an option."""
    while (made := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return made


def _kafka_log_config() -> Path:
    return Path(__file__).with_name("log4j2-kafka.properties")
