"""A Redis server of a test's own: real, on a free port of this machine, with nothing on the disk."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis

from infra.stack.ports import LOOPBACK
from infra.stack.redis_server import check_redis_port, find_redis_server
from tests.conftest import wait_until
from torture.installation_settings import free_port


@contextmanager
def redis_server(folder: Path) -> Iterator[Redis]:
    """A client of a server that ends with the block."""
    port = free_port()
    options = ["--bind", LOOPBACK, "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(folder)]
    with (folder / "redis.log").open("wb") as log:
        server = subprocess.Popen([str(find_redis_server()), *options], stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until("Redis to answer", lambda: check_redis_port(port) is None, deadline_s=20)
        with Redis.from_url(f"redis://{LOOPBACK}:{port}/0", socket_timeout=30) as client:
            yield client
    finally:
        server.kill()
        server.wait(timeout=20)
