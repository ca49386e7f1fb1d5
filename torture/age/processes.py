"""Services on an aged home as processes of their own: what a start costs, and whether serving always answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from infra.settings import Settings
from infra.stack.ports import LOOPBACK
from torture.installation_settings import free_port
from torture.wait import wait_for

MB = 2**20
START_S = 120.0
POLL_S = 0.05
REQUEST_S = 20.0


class ServiceFailed(RuntimeError):
    """A service did not start on the aged home, or did not answer."""


def measure_starts(settings: Settings, ahead_s: float, asked: str) -> dict[str, float]:
    """Processor seconds and megabytes of each service from its start until it is ready."""
    found: dict[str, float] = {}
    for part in ("archiver", "speed"):
        done = subprocess.run(
            _command(part, ahead_s), env=_environment(settings, 0), capture_output=True, timeout=START_S, check=False
        )
        if done.returncode:
            raise ServiceFailed(f"The start of {part!r} on the aged home failed: {done.stderr.decode()[-2000:]}")
        memory, seconds = map(float, done.stdout.split()[-2:])
        found |= {f"{part}_start_s": seconds, f"{part}_start_mb": memory}
    with ServingProcess.running(settings, ahead_s) as serving:
        serving.ask(asked)
        found |= {"serving_start_s": serving.processor_s, "serving_start_mb": serving.memory_mb}
    return found


class ServingProcess:
    """The serving layer, as a process with a port of its own."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process, self._port = process, port
        self.statuses: Counter[int] = Counter()
        """Of the requests of `polled`; 0 stands for no reply."""

    @classmethod
    @contextmanager
    def running(cls, settings: Settings, ahead_s: float) -> Iterator[ServingProcess]:
        """From its start, when it replies, to its end."""
        port = free_port()
        log = settings.home / "logs" / "age-serving.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            process = subprocess.Popen(
                _command("serving", ahead_s), env=_environment(settings, port), stdout=output, stderr=output
            )
        serving = cls(process, port)
        try:
            wait_for("the serving layer to reply", lambda: serving.is_ready(log), START_S)
            yield serving
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=30)

    def is_ready(self, log: Path) -> bool:
        """Whether it replies. ServiceFailed where it ended."""
        if self._process.poll() is not None:
            raise ServiceFailed(f"The serving layer ended on the aged home: {log.read_text()[-2000:]}")
        return self._status("/views")[0] == 200

    def ask(self, path: str) -> Any:
        """The reply to a GET request as JSON. ServiceFailed where its status is not 200."""
        status, body = self._status(path)
        if status != 200:
            raise ServiceFailed(f"GET {path} gave status {status}: {body[:1000]!r}")
        return json.loads(body)

    @contextmanager
    def polled(self, path: str) -> Iterator[None]:
        """Ask again and again while the block runs. ServiceFailed where a single reply is not 200."""
        done = threading.Event()

        def poll() -> None:
            while not done.wait(POLL_S):
                self.statuses[self._status(path)[0]] += 1

        thread = threading.Thread(target=poll, name="poll-serving", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
        if not self.statuses or self.statuses.keys() != {200}:
            raise ServiceFailed(f"GET {path} was not answered each time: {dict(self.statuses)} (status: replies).")

    @property
    def processor_s(self) -> float:
        """Processor seconds so far."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    @property
    def memory_mb(self) -> float:
        """Resident memory now."""
        return float(psutil.Process(self._process.pid).memory_info().rss / MB)

    def _status(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self._port}{path}", timeout=REQUEST_S) as reply:
                return int(reply.status), reply.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError as error:
            return 0, str(error).encode()


def _command(part: str, ahead_s: float) -> list[str]:
    return [sys.executable, "-m", "torture.age.start_up", part, str(ahead_s)]


def _environment(settings: Settings, port: int) -> dict[str, str]:
    password = settings.redis_password.get_secret_value() if settings.redis_password else ""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")},
        "TIDEMARK_HOME": str(settings.home),
        "TIDEMARK_VIEWS_DIR": str(settings.views_dir),
        "TIDEMARK_WITH_EXAMPLES": "false",
        "TIDEMARK_REDIS_URL": str(settings.redis_url),
        "TIDEMARK_REDIS_PASSWORD": password,
        "TIDEMARK_SPEED_DEDUP_HORIZON_S": str(settings.speed_dedup_horizon_s),
        "TIDEMARK_ACCESS_REQUIRED": "false",
        "TIDEMARK_SERVING_PORT": str(port),
    }
