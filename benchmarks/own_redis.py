"""A Redis of its own for a benchmark that runs everything else in its process: nothing of it is stored."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from bench_serving import check_redis_port, free_port, wait_until

from infra.stack.redis_server import find_redis_server


@contextmanager
def own_redis(folder: str) -> Iterator[str]:
    """The address of a Redis that lives as long as the block."""
    port = free_port()
    command = [str(find_redis_server()), "--port", str(port), "--save", "", "--appendonly", "no", "--dir", folder]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_until("Redis answers", lambda: check_redis_port(port) is None)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()
