"""Karapace's tests of its registry against ours: each passes, or differs for the reason that is listed.

They are not in this repository. KARAPACE_CHECKOUT names a checkout of github.com/Aiven-Open/karapace, at the commit of
tests/clients/karapace/expected.json:

    SOAK=1 KARAPACE_CHECKOUT=FOLDER .venv/bin/python -m pytest -m soak tests/system/test_karapace.py

KARAPACE_OUTCOMES names a file for what became of each test, to be read when an outcome changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Stack, start_stack, stop_stack, wait_until

ADAPTER = Path(__file__).parents[1] / "clients" / "karapace"
EXPECTED = json.loads((ADAPTER / "expected.json").read_text())
CHECKOUT = os.environ.get("KARAPACE_CHECKOUT")


@pytest.mark.soak
@pytest.mark.skipif(CHECKOUT is None, reason="KARAPACE_CHECKOUT names no checkout of Karapace")
def test_karapaces_tests_pass_or_differ_as_listed(tmp_path: Path) -> None:
    checkout = Path(CHECKOUT or "")
    at = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True)
    assert at.stdout.strip() == EXPECTED["commit"], f"another commit of Karapace is in {checkout}"
    stack = start_stack(tmp_path / "home")
    try:
        found = outcomes(stack, checkout, tmp_path)
    finally:
        stop_stack(stack)
    if file := os.environ.get("KARAPACE_OUTCOMES"):
        Path(file).write_text(json.dumps(found, indent=1, sort_keys=True))
    differ = {test: reason for reason, tests in EXPECTED["differ"].items() for test in tests}
    assert found.keys() >= differ.keys()
    unexpected = {test: outcome for test, outcome in found.items() if (outcome != "passed") != (test in differ)}
    assert unexpected == {}
    assert len(found) - len(differ) == EXPECTED["passed"]


def outcomes(stack: Stack, checkout: Path, tmp_path: Path) -> dict[str, str]:
    """What became of each test, by its name without the folder."""
    with stack.client() as client:
        wait_until("the registry", lambda: client.get("/schema-registry/subjects").is_success)
    settings, report = tmp_path / "pytest.ini", tmp_path / "report.json"
    settings.write_text("[pytest]\n")
    host = stack.collector.removeprefix("http://")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (ADAPTER, checkout / "src", checkout))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "KARAPACE_REGISTRY": f"http://admin:{stack.secret}@{host}/schema-registry",
        "KARAPACE_KAFKA": stack.kafka,
    }
    command: list[Any] = [
        *(sys.executable, "-m", "pytest", "-q", "-c", settings, "--rootdir", checkout, "--noconftest"),
        *("-p", "adapter", "-p", "no:cacheprovider", "-p", "no:schemathesis", "--report", report),
        *(f"tests/integration/{file}" for file in EXPECTED["files"]),
    ]
    done = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=1500, check=False
    )
    assert report.exists(), done.stdout[-4000:] + done.stderr[-4000:]
    found: dict[str, str] = json.loads(report.read_text())
    return {name.removeprefix("tests/integration/"): outcome for name, outcome in found.items()}
