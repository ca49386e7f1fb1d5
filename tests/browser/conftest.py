"""A real browser: Chromium of this machine, by Playwright's package for Python."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
"""As root in a container, and without a word to anybody else."""
ARTIFACTS = Path(__file__).parents[2] / "artifacts" / "dashboard"


def chromium() -> str:
    """The path of a browser, or a failure that says how to get one. Skipping would look like a pass."""
    named = os.environ.get("TIDEMARK_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if named is None:
        pytest.fail(
            "There is no Chromium on this machine, and the tests of the dashboard need one. `make browser` installs it "
            "as root on Debian (apt-get install chromium); else name one with TIDEMARK_CHROMIUM."
        )
    return named


@pytest.fixture(scope="module")  # while it runs, its event loop is in the way of tests that run one of their own
def browser() -> Iterator[Browser]:
    path = chromium()
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield running
        running.close()


@pytest.fixture(scope="session")
def artifacts() -> Path:
    """Where screenshots are kept, for people to look at."""
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    return ARTIFACTS
