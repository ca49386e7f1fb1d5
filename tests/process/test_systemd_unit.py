"""The systemd unit, and what the supervisor tells systemd."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.settings import load_settings
from infra.stack.service_manager import ServiceManager
from infra.stack.systemd_unit import unit_text, unit_warnings
from tests.conftest import wait_until


@pytest.fixture
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / 'a "folder" of 100 %'
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in [name for name in os.environ if name.startswith("TIDEMARK_")]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("_here")
def test_unit_has_what_this_shell_has_and_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Path("tidemark.toml").write_text("log_max_mb = 7\n")
    monkeypatch.setenv("TIDEMARK_HOME", "data")
    monkeypatch.setenv("TIDEMARK_COLLECTOR_PORT", "443")
    monkeypatch.setenv("TIDEMARK_REDIS_URL", "redis://elsewhere:6379/0")
    monkeypatch.setenv("TIDEMARK_REDIS_PASSWORD", "hunter2")
    monkeypatch.setenv("TIDEMARK_SPARK_CONF", '{"spark.hadoop.fs.s3a.secret.key": "hunter3"}')
    settings = load_settings()
    text, warnings = unit_text(settings), list(unit_warnings(settings))
    assert "hunter" not in text
    assert [warning.split()[0] for warning in warnings] == ["TIDEMARK_REDIS_PASSWORD", "TIDEMARK_SPARK_CONF"]
    folder = str(Path.cwd()).replace("%", "%%")
    quoted = folder.replace('"', '\\"')
    for line in (
        "Type=notify",
        f"WorkingDirectory={folder}",
        f'Environment="TIDEMARK_CONFIG={quoted}/tidemark.toml"',
        f'Environment="TIDEMARK_HOME={quoted}/data"',
        'Environment="TIDEMARK_COLLECTOR_PORT=443"',
        "AmbientCapabilities=CAP_NET_BIND_SERVICE",
    ):
        assert line in text.splitlines()


@pytest.mark.usefixtures("_here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze to ask")
    unit = tmp_path / "tidemark.service"
    unit.write_text(unit_text(load_settings()))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if "tidemark.service" in line]) == (0, [])


# ---- what the supervisor tells it ----------------------------------------------


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "300000000")
        yield listening


def heard(listening: socket.socket) -> list[str]:
    lines = []
    while True:
        try:
            lines += listening.recv(4096).decode().splitlines()
        except BlockingIOError:
            return lines


def status(*states: str, stopping: bool = False) -> dict[str, Any]:
    services = [{"name": f"s{number}", "state": state} for number, state in enumerate(states)]
    return {"services": services, "stopping": stopping, "settled": all(state == "ready" for state in states)}


def test_systemd_hears_ready_once_and_then_what_happens(told: socket.socket) -> None:
    manager = ServiceManager()
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & os.environ.keys()  # our children have nothing to say
    manager.tick()
    manager.tell(status("starting", "ready"))
    assert heard(told) == [
        "WATCHDOG=1", "EXTEND_TIMEOUT_USEC=120000000", "STATUS=1 of 2 services are ready; s0 is starting",
    ]  # fmt: skip
    manager.tell(status("ready", "ready"))
    assert heard(told) == ["STATUS=2 of 2 services are ready", "READY=1"]
    manager.tell(status("unresponsive", "ready"))
    manager.tell(status("ready", "ready"))
    assert "READY=1" not in heard(told)
    manager.tell(status("ready", "stopping", stopping=True))
    assert "STOPPING=1" in heard(told)


def test_without_systemd_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    manager = ServiceManager()
    manager.tell(status("ready"))
    manager.tick()


def test_service_manager_that_is_gone_does_not_stop_us(told: socket.socket, tmp_path: Path) -> None:
    manager = ServiceManager()
    told.close()
    (tmp_path / "notify").unlink()
    manager.tell(status("ready"))
    manager.tick()


SERVICES = """
import sys
from infra.stack import up
from infra.stack.service import Service
command = ("sh", "-c", "echo notify=$NOTIFY_SOCKET; exec sleep 600")
sys.exit(up.main(lambda _settings: [Service(name="one", command=command, address="", check=lambda: None)]))
"""


def test_supervisor_tells_systemd_that_it_is_ready_and_lives_and_stops(told: socket.socket, tmp_path: Path) -> None:
    program, lines = tmp_path / "services.py", list[str]()
    program.write_text(SERVICES)
    environment = {**os.environ, "TIDEMARK_HOME": str(tmp_path / "home")}

    def has_heard(*expected: str) -> bool:
        lines.extend(heard(told))
        return set(expected) <= set(lines)

    with subprocess.Popen([sys.executable, str(program)], env=environment, stdout=subprocess.PIPE) as supervisor:
        wait_until("ready", lambda: has_heard("READY=1", "WATCHDOG=1", "STATUS=1 of 1 services are ready"), 60)
        supervisor.terminate()
        wait_until("stopping", lambda: has_heard("STOPPING=1"), 60)
        assert supervisor.wait(60) == 0
    assert (tmp_path / "home" / "logs" / "one.log").read_text() == "notify=\n"
