"""A pytest plugin for `tests.run`: write what became of each test to the file of `--outcomes`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

MAX_TEXT = 4_000
"""Characters of a failure that are kept: its end says what was wrong."""

MARKERS = ("in_order", "no_second_try")
"""Markers that change how a red test is tried again."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", metavar="FILE", help="write what became of each test to this file, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--outcomes")
    if file and not hasattr(config, "workerinput"):  # workers of xdist report to the process that started them
        config.pluginmanager.register(Recorder(Path(file)), "tidemark-outcomes")


def plain(nodeid: str) -> str:
    """Without the group that xdist puts behind it: `file.py::test[case]@spark`."""
    return nodeid.rpartition("@")[0] if nodeid.rfind("@") > nodeid.rfind("]") else nodeid


class Recorder:
    """Collects the reports of one run."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.tests: dict[str, dict[str, Any]] = {}
        self.fatal: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test is as bad as the worst of its setup, its call and its teardown."""
        nodeid = plain(report.nodeid)
        if report.when not in ("setup", "call", "teardown"):  # xdist reports a worker that crashed in this way
            self.fatal.append(f"{nodeid}: {report.longreprtext}")
            self.tests.pop(nodeid, None)
            return
        test = self.tests.setdefault(
            nodeid,
            {"outcome": "passed", "seconds": 0.0, **{name: name in report.keywords for name in MARKERS}},
        )
        test["seconds"] = round(test["seconds"] + report.duration, 3)
        if report.failed:
            test["outcome"] = "failed"
            test["failure"] = (test.get("failure", "") + f"{report.when}: {report.longreprtext}\n")[-MAX_TEXT:]
        elif report.skipped and test["outcome"] == "passed":
            test["outcome"] = "skipped"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be read is nothing to try again."""
        if report.failed:
            self.fatal.append(f"{report.nodeid}: {report.longreprtext}")

    def pytest_sessionfinish(self) -> None:
        """The file exists only if the run came to its end."""
        self.file.write_text(json.dumps({"tests": self.tests, "fatal": self.fatal}))
