"""The demo stops its stack and removes its home however it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from infra.home import read_json
from tests.conftest import wait_until

SERVICES = """
import sys
from infra.stack import up
from infra.stack.service import Service
sys.exit(up.main(lambda _settings: [Service(name="one", command=("sleep", "600"), address="", check=lambda: None)]))
"""
DEMO = """
import sys, time
from infra.stack import up
from tidemark.demo import demo
start = up.start_detached
up.start_detached = lambda settings, show: start(settings, show, (sys.argv[1],))  # one small service instead of eight
demo.Demo.show = lambda self, count, stays: print("shown", flush=True) or time.sleep(600)
demo.command(events=1, once=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda number: number.name)
def test_signal_to_the_demo_stops_its_stack_and_removes_its_home(tmp_path: Path, number: signal.Signals) -> None:
    program, home = tmp_path / "services.py", tmp_path / "home-demo"
    program.write_text(SERVICES)
    environment = {**os.environ, "TIDEMARK_HOME": str(tmp_path / "home")}
    with subprocess.Popen(
        [sys.executable, "-c", DEMO, str(program)], env=environment, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line == "shown\n":
                break
        status = read_json(home / "run" / "status.json")
        demo.send_signal(number)
        demo.communicate(timeout=60)
    pids = [status["pid"], *(service["pid"] for service in status["services"])]
    wait_until("everything to be gone", lambda: not any(psutil.pid_exists(pid) for pid in pids))
    assert not home.exists()
    assert demo.returncode != 0
