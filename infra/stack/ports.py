"""The ports of a home: chosen once, remembered, never shared with another home of the same user."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from infra.errors import PortTaken
from infra.home import Home, read_json, write_json
from infra.locks import hold

LOOPBACK = "127.0.0.1"
FIRST = {
    "kafka_port": 9092,
    "kafka_controller_port": 9192,
    "redis_port": 6379,
    "collector_port": 8080,
    "serving_port": 8090,
    "scheduler_metrics_port": 9464,
    "archiver_metrics_port": 9465,
    "speed_metrics_port": 9466,
    "alerts_metrics_port": 9467,
    "supervisor_metrics_port": 9468,
}
"""Where the search for a free port starts, for each setting."""


def choose_ports(home: Home, wanted: dict[str, int], claims_file: Path) -> dict[str, int]:
    """A port for each setting: the wanted one, else the home's own from last time, else a free one from FIRST on.

    `claims_file` is shared by the user's homes, so that two that start at the same moment choose different ports.
    Raises PortTaken, and remembers nothing, where one is taken.
    """
    remembered = read_json(home.ports_file) or {}
    with _claims(claims_file) as claims:
        others = {port for root, ports in claims.items() if root != str(home.root) for port in ports.values()}
        chosen = {setting: port for setting, port in wanted.items() if port}
        for setting in [name for name in wanted if name not in chosen]:  # last: no wanted port is given away
            ours = set(chosen.values())
            last_time: int = remembered.get(setting, 0)
            is_kept = last_time and last_time not in ours
            chosen[setting] = last_time if is_kept else _first_free(FIRST[setting], others | ours)
        check_free(chosen)
        claims[str(home.root)] = remembered | chosen
    # A port that a setting asked for is the setting's to remember: without the setting, the home has its own again.
    write_json(home.ports_file, remembered | {name: port for name, port in chosen.items() if not wanted[name]})
    return chosen


def check_free(ports: dict[str, int]) -> None:
    """Raise PortTaken, saying by whom, unless every port can be bound."""
    for setting, port in ports.items():
        if not is_free(port):
            raise PortTaken(setting, port, holder_of(port))


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def holder_of(port: int) -> str:
    """Who listens on a port, as a person can use it: name, process id and command."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:  # macOS, without root
        connections = []
    listening = [c for c in connections if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port]
    for connection in listening:
        if connection.pid is None:
            continue
        try:
            process = psutil.Process(connection.pid)
            return f"{process.name()} (process {process.pid}: {' '.join(process.cmdline())[:120]})"
        except psutil.Error:
            continue
    return "a process of another user"


def _first_free(start: int, taken: set[int]) -> int:
    return next(port for port in range(start, 65536) if port not in taken and is_free(port))


@contextmanager
def _claims(path: Path) -> Iterator[dict[str, dict[str, int]]]:
    """The claims of all homes that still exist, written back at the end."""
    held = ExitStack()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held.enter_context(hold(path.with_suffix(".lock")))
    except OSError:  # a cache of jars that is read-only, in an image: no home can claim anything there
        yield {}
        return
    with held:
        known = read_json(path) or {}
        claims = {root: ports for root, ports in known.items() if Path(root).is_dir()}
        yield claims
        write_json(path, claims)
