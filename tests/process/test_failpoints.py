"""Failpoints: nothing where none are armed, a sudden end once where one is, and each of them a fault."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import timeit
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from infra import failpoints
from tests.conftest import wait_until
from torture.faults.failpoints import (
    AT_START,
    IN_COMMANDS,
    IN_EVOLUTIONS,
    IN_OVERTAKES,
    IN_RUNS,
    IN_SERVICES,
    IN_STORES,
    WITHOUT_REDIS,
)

ROOT = Path(__file__).parents[2]
PACKAGES = ("infra", "master_dataset", "hand_off", "batch_layer", "speed_layer", "serving_layer", "tidemark")


def test_without_the_variable_reaching_a_place_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    program = "from infra import failpoints; assert failpoints.reach is failpoints._ignore; failpoints.reach('here')"
    without = {name: value for name, value in os.environ.items() if name != failpoints.VARIABLE}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=without, check=True, timeout=60)
    assert (tmp_path / "here").exists()


def test_without_the_variable_it_costs_less_than_a_microsecond() -> None:
    assert failpoints.reach is failpoints._ignore  # type: ignore[comparison-overlap]
    assert min(timeit.repeat(lambda: failpoints.reach("here"), number=10_000, repeat=5)) < 10_000 * 1e-6


@pytest.mark.parametrize(("armed", "code"), [("here", -9), ("elsewhere", 0)])
def test_an_armed_place_kills_the_process_once(tmp_path: Path, armed: str, code: int) -> None:
    (tmp_path / armed).touch()
    program = "from infra.failpoints import reach; reach('here')"
    environment = {**os.environ, failpoints.VARIABLE: str(tmp_path)}
    for expected in (code, 0):
        ended = subprocess.run([sys.executable, "-c", program], env=environment, check=False, timeout=60)
        assert ended.returncode == expected
    assert (tmp_path / armed).exists() == (code == 0)


def test_an_armed_place_may_kill_the_third_time_it_is_reached(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("3")
    program = "from infra.failpoints import reach\nfor number in range(5): print(number, flush=True); reach('here')"
    environment = {**os.environ, failpoints.VARIABLE: str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=False, timeout=60, capture_output=True
    )
    assert (ended.returncode, ended.stdout) == (-9, b"0\n1\n2\n")
    assert not (tmp_path / "here").exists()


def test_an_armed_place_may_stop_the_process_until_it_is_let_go_on(tmp_path: Path) -> None:
    (tmp_path / "here").write_text(failpoints.STOP)
    program = "from infra.failpoints import reach; reach('here'); print('went on')"
    environment = {**os.environ, failpoints.VARIABLE: str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE) as process:
        wait_until("it to stop", lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        assert not (tmp_path / "here").exists()
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=60)[0] == b"went on\n"
        assert process.returncode == 0


IN_RESTORES = ("restore.before_end", "restore.between")
"""A restore works on a home where nothing runs yet: tests/unit/test_backup.py cuts it off at these places."""

IN_REBASES = ("rebase.before_floor", "rebase.after_floor", "rebase.after_commit")
"""A rebase needs another Kafka: tests/system/test_rebase.py cuts it off at these places."""

IN_REMOVALS = (
    "retain.after_foundation", "retain.after_split", "retain.before_commit", "retain.before_ledger",
    "retain.after_commit", "strays.before_remove",
)  # fmt: skip
"""What these remove is older than the programme is long: tests/spark/test_retention.py and
tests/unit/test_archiver_upkeep.py cut removals off at these places."""


IN_CORRECTIONS = ("writer_schemas.after_begin",)
"""Records of the programme name no schemas: tests/system/test_schemas_found_later.py cuts a correction off there."""


def test_each_place_in_the_code_is_a_fault_of_the_programme() -> None:
    placed = {name for package in PACKAGES for path in (ROOT / package).rglob("*.py") for name in _placed(path)}
    elsewhere = {*IN_STORES, *IN_RESTORES, *IN_REBASES, *IN_OVERTAKES, *IN_REMOVALS, *IN_EVOLUTIONS, *IN_CORRECTIONS}
    assert placed == {*IN_SERVICES, *IN_RUNS, *IN_COMMANDS, *elsewhere}
    assert {*AT_START, *WITHOUT_REDIS} <= {*IN_SERVICES}


def _placed(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("reach", "failpoint"):
                yield str(node.args[0].value)
