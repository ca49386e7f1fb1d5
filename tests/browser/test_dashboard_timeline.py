"""The timeline of a run on the page Lambda, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.manifests import DataFile, Manifest, Phase, ViewData, write_manifest
from hand_off.publish_log import Entry
from infra.rest.access_keys import add_key
from tests.browser.page_checks import DESKTOP, PATIENCE_MS, sign_in, watch
from tests.conftest import wait_until
from tests.process.serving_server import Served, serving

CATALOG = {"page_hits": "0" * 64}
FIRST = (Phase("cut", 0.4, 0), Phase("page_hits: compute", 12.25, 3), Phase("page_hits: index", 2.5, 0))
SECOND = (Phase("cut", 0.2, 0), Phase("page_hits: compute", 1.5, 1))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A serving layer alone; what a run leaves is written here."""
    with serving(tmp_path_factory.mktemp("timeline") / "home") as running:
        yield running


@pytest.fixture
def page(served: Served, browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE_MS)
    opened.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
    wrongs: list[str] = []
    watch(opened, [], wrongs)
    opened.goto(served.address)
    sign_in(opened, "reader", add_key(served.home, "reader", ["query"]))
    opened.goto(f"{served.address}/#/lambda?source=web")
    yield opened
    context.close()
    assert wrongs == []


def publish(served: Served, run: int, timeline: tuple[Phase, ...]) -> None:
    folder, cut = BatchFolder(served.home / "batch" / "web"), {0: 10 * run}
    views = (ViewData("page_hits", "0" * 64, "full", (DataFile("2026-03-01", "a", 7, 99),), 7, {}, (), 1.5),)
    manifest: Any = Manifest(run, "web", cut, None, 100.0, 116.0, 39, 1, 2, views, (), timeline=timeline)
    write_manifest(folder, manifest)
    publish_log.append(folder, Entry(run, cut, CATALOG, 100.0 + run))


def phases(page: Page) -> list[list[str]]:
    """The phases on the page, without their bars."""
    rows = page.get_by_role("region", name="Phases of the run, in their order").locator("tbody tr").all()
    return [[cell.strip() for cell in row.locator("td:not(.share)").all_inner_texts()] for row in rows]


def test_timeline_of_the_newest_run_is_shown(served: Served, page: Page) -> None:
    page.get_by_text("No run that is listed has a timeline.").wait_for()
    publish(served, 1, FIRST)
    page.get_by_role("heading", name="Timeline of run 1").wait_for()
    first = [["cut", "0.4 s", "0"], ["page_hits: compute", "12 s", "3"], ["page_hits: index", "2.5 s", "0"]]
    wait_until("the phases of run 1", lambda: phases(page) == first, 30)
    publish(served, 2, SECOND)
    page.get_by_role("heading", name="Timeline of run 2").wait_for()
    second = [["cut", "0.2 s", "0"], ["page_hits: compute", "1.5 s", "1"]]
    wait_until("the phases of run 2", lambda: phases(page) == second, 30)
