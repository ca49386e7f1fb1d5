"""A quick test starts no process and opens no port: one that does so without the marker `process` fails."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

import pytest

QUICK = ("unit", "laws")
"""The folders that `make test-quick` runs."""
SLOW = {"subprocess.Popen", "os.fork", "os.posix_spawn", "os.system", "socket.bind"}
"""Events that Python raises for its audit hooks."""


class QuickTests:
    """Watches one test at a time, its fixtures included."""

    def __init__(self) -> None:
        self.is_watching = False
        self.seen: list[str] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_watching and event in SLOW:
            self.seen.append(f"{event} {arguments[1:2]}"[:200])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        """From the first fixture on."""
        self.seen.clear()
        self.is_watching = item.path.parent.name in QUICK and item.get_closest_marker("process") is None
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None]:
        """Once everything else was said about the test."""
        try:
            return (yield)
        finally:
            self.is_watching = False
            if self.seen:
                pytest.fail(
                    f"A quick test did {self.seen}. Move it to tests/process, or mark it `process`.", pytrace=False
                )
