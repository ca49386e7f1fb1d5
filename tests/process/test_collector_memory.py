"""What the collector's process takes at most, when many clients send the densest JSON that is allowed at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from infra.home import Home
from infra.rest.access_keys import add_key
from infra.settings import Settings, child_environment, load_settings
from infra.stack.ports import LOOPBACK
from tests.conftest import wait_until
from torture.installation_settings import free_port

CLIENTS = 8
NESTED = '{"a":' * 60 + "0" + "}" * 60
"""Of what is allowed, this takes most: 110 bytes for each of its commas, colons and brackets."""
MESSAGE = f'{{"type":"track","event":"x","properties":{{"p":[{",".join([NESTED] * 800)}]}}}}'
BODY = f'{{"batch":[{",".join([MESSAGE] * 20)}]}}'.encode()


@contextmanager
def collector(settings: Settings, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process that the supervisor starts, without a Kafka."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "master_dataset.collector"],
            env={**os.environ, **child_environment(settings)}, stdout=file, stderr=file,
        )  # fmt: skip
    try:
        wait_until("the collector to answer", lambda: _is_up(settings) or process.poll() is not None, 60)
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.kill()
        process.wait(30)


def _is_up(settings: Settings) -> bool:
    try:
        return httpx.get(f"http://{LOOPBACK}:{settings.collector_port}/health").status_code == 200
    except httpx.TransportError:
        return False


def test_dense_bodies_from_many_sides_take_no_more_than_operations_says(tmp_path: Path) -> None:
    """Whoever is not let in gets 429. docs/operations.md has the bound ("Memory of each process")."""
    settings = load_settings(
        home=tmp_path / "home", collector_port=free_port(), kafka_bootstrap=f"{LOOPBACK}:1", examples="segment"
    )
    Home(settings.home).prepare()
    secret = add_key(settings.home, "key", ["produce"])
    address = f"http://{LOOPBACK}:{settings.collector_port}/v1/batch"
    assert len(BODY) < settings.collector_max_body_mb * 1_000_000

    def send(_number: int) -> int:
        return httpx.post(address, content=BODY, headers={"Authorization": f"Bearer {secret}"}, timeout=120).status_code

    with collector(settings, tmp_path / "log") as process, ThreadPoolExecutor(CLIENTS) as clients:
        statuses = Counter(clients.map(send, range(CLIENTS)))
        text = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    assert found
    bound = 400 + 2 * settings.collector_buffer_mb + 2 * 20 * settings.collector_max_body_mb
    assert int(found[1]) / 1024 < bound, statuses
    assert 503 in statuses, "at least one gets as far as Kafka, which there is not"
    assert statuses.keys() <= {429, 503}, "the others have to wait"
