"""The dashboard in a real browser, on the whole stack: what people see is right, live, safe, and can be reached.

The tests share one stack and run in their order: first there is nothing, then events, then a run.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from infra.rest.access_keys import add_key, remove_key
from infra.settings import child_environment
from master_dataset.table import coverage
from master_dataset.table.paths import table_path
from tests.browser.page_checks import (
    DESKTOP,
    HOSTILE,
    PATIENCE_MS,
    PHONE,
    VENDOR,
    is_wider_than_the_window,
    out_of_reach,
    serious,
    sign_in,
    watch,
)  # fmt: skip
from tests.conftest import Stack, start_stack, stop_stack, wait_until
from tests.system.redis_server import free_port
from views.short_texts import shorten

HITS, LATENCY = "/#/views/page_hits", "/#/views/page_latency?answer=ms&compare=1"


@dataclass
class Dashboard:
    """The stack, a browser that is signed in, and what was sent so far."""

    stack: Stack
    context: BrowserContext
    urls: list[str] = field(default_factory=list)
    wrongs: list[str] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)

    def page(self, path: str = "/", viewport: dict[str, int] | None = None) -> Page:
        page = self.context.new_page()
        page.set_viewport_size(viewport or DESKTOP)  # type: ignore[arg-type]
        page.set_default_timeout(PATIENCE_MS)
        watch(page, self.urls, self.wrongs)
        page.goto(self.stack.serving + path)
        return page

    def send(self, *urls: str) -> None:
        """A page view each, of now."""
        begun = sum(self.sent.values())
        events = [
            {
                "event_id": f"b{begun + number}",
                "event_time": datetime.now(UTC).isoformat(),
                "user_id": f"u{number % 5}",
                "name": "page_view",
                "properties": {"url": url, "ms": 10.0 + number % 90},
            }
            for number, url in enumerate(urls)
        ]
        with self.stack.client() as client:
            client.post("/events/web", json=events).raise_for_status()
        for url in urls:
            self.sent[url] = self.sent.get(url, 0) + 1

    @property
    def total(self) -> int:
        return sum(self.sent.values())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """All layers but the scheduler."""
    running = start_stack(
        tmp_path_factory.mktemp("browser") / "home", archiver_enabled=True, speed_enabled=True, serving_enabled=True,
        archive_interval_s=1, start_timeout_s=300, alerts_enabled=True, examples="web,cards",
        alerts_metrics_port=free_port(), serving_redis_timeout_s=10,  # a busy machine is no reason to be degraded
    )  # fmt: skip
    yield running
    stop_stack(running)


@pytest.fixture(scope="module")
def dashboard(whole: Stack, browser: Browser) -> Iterator[Dashboard]:
    context = browser.new_context()
    found = Dashboard(whole, context)
    page = found.page()
    sign_in(page, "admin", whole.secret)
    page.close()
    yield found
    context.close()


@pytest.fixture(autouse=True)
def _nothing_wrong(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "dashboard" in request.fixturenames:
        found: Dashboard = request.getfixturevalue("dashboard")
        assert found.wrongs == []


def number_in(text: str) -> int | None:
    found = re.search(r"[\d,]+", text)
    return int(found[0].replace(",", "")) if found else None


def hits_of(page: Page) -> int | None:
    """The headline of a view page. None: it says nothing yet."""
    shown = page.locator(".total .headline").first
    return number_in(shown.inner_text()) if shown.count() else None


def wait_for_hits(page: Page, count: int) -> None:
    wait_until(f"{count} hits on screen", lambda: hits_of(page) == count, 90)


# ---- signing in ----------------------------------------------------------------


def test_numbers_are_shown_to_those_alone_who_have_a_key(whole: Stack, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{whole.serving}/#/views/page_hits")
    page.get_by_role("heading", name="Sign in").wait_for()
    page.get_by_label("Secret").fill("wrong")
    page.get_by_label("Secret").press("Enter")
    page.get_by_role("alert").get_by_text("There is no key with this name and secret").wait_for()
    assert page.locator(".total").count() == 0
    secret = add_key(whole.settings.home, "visitor", ["query"], ["page_hits"])
    sign_in(page, "visitor", secret)
    page.get_by_role("heading", name="page_hits").wait_for()
    page.goto(f"{whole.serving}/#/")
    page.locator(".card").first.wait_for()
    assert page.locator(".card h2").all_inner_texts() == ["page_hits"], "a session shows what its key may see"
    remove_key(whole.settings.home, "visitor")
    page.get_by_role("heading", name="Sign in").wait_for()
    context.close()


def test_before_any_event_the_page_says_how_to_send_one(dashboard: Dashboard) -> None:
    page = dashboard.page(HITS)
    page.get_by_text("No events in this range yet").wait_for()
    assert "curl" in page.locator(".empty pre").inner_text()
    page.goto(f"{dashboard.stack.serving}/#/alerts")
    page.get_by_role("heading", name="Alerts").wait_for()
    page.close()


def test_view_without_events_in_the_range_says_where_they_are_and_offers_that_range(dashboard: Dashboard) -> None:
    event = {"event_id": "old", "event_time": "2020-05-01T12:00:00Z", "card": "4711", "outcome": "declined"}
    with dashboard.stack.client() as client, dashboard.stack.asking() as asking:
        client.post("/events/cards", json=[event]).raise_for_status()
        wait_until("the old event", lambda: asking.get("/views/card_attempts").json()["data"])
    page = dashboard.page("/#/views/card_attempts")
    page.get_by_text("This view has events from 1 May 2020 to 1 May 2020.").wait_for()
    page.get_by_role("button", name="Show all of them").click()
    wait_for_hits(page, 1)
    assert page.get_by_role("button", name="all", exact=True).get_attribute("aria-pressed") == "true"
    page.goto(f"{dashboard.stack.serving}/#/")
    card = page.locator(".card", has_text="card_attempts")
    card.get_by_text("until 1 May 2020").wait_for()
    wait_until("the newest number on the card", lambda: number_in(card.locator(".headline").inner_text()) == 1)
    page.close()


# ---- live ----------------------------------------------------------------------


def test_numbers_move_while_events_flow(dashboard: Dashboard) -> None:
    page, overview = dashboard.page(HITS), dashboard.page("/")
    dashboard.send(*["/"] * 30, *["/docs"] * 12)
    wait_for_hits(page, 42)
    dashboard.send(*["/pricing"] * 8)
    wait_for_hits(page, 50)
    headline = overview.locator(".card", has_text="page_hits").locator(".headline")
    wait_until("the overview to follow", lambda: number_in(headline.inner_text()) == 50, 60)
    assert page.locator(".chart .bar.speed").count() >= 1
    assert page.locator(".chart .bar.batch").count() == 0, "no run has confirmed anything yet"
    page.close()
    overview.close()


def test_click_on_a_key_narrows_the_numbers_and_a_click_on_its_chip_widens_them(dashboard: Dashboard) -> None:
    page = dashboard.page(HITS)
    wait_for_hits(page, 50)
    page.get_by_role("button", name="/docs", exact=True).click()
    wait_for_hits(page, 12)
    assert "f=url%3D%2Fdocs" in page.url, "the address can be shared"
    page.reload()
    wait_for_hits(page, 12)
    page.get_by_role("button", name="Remove the filter on url").click()
    wait_for_hits(page, 50)
    page.close()


def test_range_zone_comparison_export_and_request_fit_what_is_shown(dashboard: Dashboard) -> None:
    page = dashboard.page(HITS)
    wait_for_hits(page, 50)
    page.get_by_role("button", name="7d").click()
    page.get_by_label("Compare with the period before").check()
    page.get_by_text("nothing before to compare with").first.wait_for()
    page.get_by_label("Time zone").fill("Europe/Berlin")
    page.get_by_label("Time zone").press("Enter")
    wait_for_hits(page, 50)
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Export CSV").click()
    lines = Path(waiting.value.path()).read_text().splitlines()
    assert lines[0].startswith("bucket,url,hits,visitors")
    assert [line.split(",")[1] for line in lines[1:]] == ["/", "/docs", "/pricing"]
    dashboard.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy as curl").click()
    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert dashboard.stack.secret not in copied
    asked = subprocess.run(
        ["bash", "-c", copied.replace("curl ", "curl -s ")],
        env={"SECRET": dashboard.stack.secret, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [row["hits"] for row in json.loads(asked.stdout)["rows"]] == [30, 12, 8]
    page.close()


def test_chart_says_of_each_period_what_batch_and_speed_gave(dashboard: Dashboard) -> None:
    page = dashboard.page(HITS)
    wait_for_hits(page, 50)
    page.locator(".chart .bar.speed").first.wait_for(state="attached")
    page.locator(".chart").focus()
    page.keyboard.press("End")
    tip = page.locator(".tip")
    tip.get_by_text("batch 0 ⊕ speed").wait_for()
    assert "provisional" in tip.inner_text()
    assert "batch 0 ⊕ speed" in page.locator("#announcement").inner_text(), "who listens is told too"
    page.goto(dashboard.stack.serving + LATENCY)
    page.locator(".chart .band").first.wait_for(state="attached")
    assert "p50" in page.locator(".total", has_text="ms").first.inner_text()
    page.close()


def test_explore_composes_a_question_and_shows_table_chart_and_request(dashboard: Dashboard) -> None:
    page = dashboard.page("/#/explore?view=page_hits")
    page.get_by_role("group", name="Answers").get_by_label("hits").check()
    page.get_by_role("group", name="By").get_by_label("url").check()
    page.get_by_label("Order").fill("-hits")
    page.get_by_role("button", name="Ask").click()
    table = page.get_by_role("tabpanel").locator("tbody tr")
    wait_until("the rows", lambda: table.count() == 3 and "/" in table.first.inner_text(), 60)
    page.get_by_role("button", name="Add a filter").click()
    page.get_by_label("Value").fill("/docs")
    page.get_by_label("Value").press("Enter")
    wait_until("one row", lambda: table.count() == 1, 60)
    page.get_by_role("tab", name="Request").click()
    assert "key.url=%2Fdocs" in page.get_by_role("tabpanel").inner_text()
    page.get_by_role("group", name="By").get_by_label("url").uncheck()
    page.get_by_label("Grain").select_option("1h")
    page.get_by_label("Fill").select_option("zero")
    page.get_by_role("button", name="Ask").click()
    page.get_by_role("tab", name="Chart").click()
    page.get_by_role("tabpanel").locator("svg .bar").first.wait_for(state="attached")
    page.get_by_label("Grain").select_option("all")
    page.get_by_label("Having").fill("nonsense >")
    page.get_by_role("button", name="Ask").click()
    page.get_by_role("alert").wait_for()
    page.close()


# ---- hostile -------------------------------------------------------------------


def test_hostile_values_stay_text_on_every_page(dashboard: Dashboard) -> None:
    dashboard.send(*HOSTILE)
    page = dashboard.page(f"{HITS}?top=25")
    wait_for_hits(page, dashboard.total)
    cells = page.locator(".rows-of-keys .value")
    wait_until("all keys", lambda: cells.count() == len(dashboard.sent), 60)
    assert set(cells.all_text_contents()) == set(map(shorten, dashboard.sent))
    page.get_by_role("button", name=HOSTILE[0]).click()
    wait_for_hits(page, 1)
    assert HOSTILE[0] in page.locator(".chip").inner_text()
    page.goto(f"{dashboard.stack.serving}/#/views/top_pages")
    page.locator(".lists .value").first.wait_for()
    wait_until("the ranking", lambda: HOSTILE[0] in page.locator(".lists .value").all_text_contents(), 60)
    page.goto(f"{dashboard.stack.serving}/#/explore?view=page_hits&by=url")
    page.get_by_role("tabpanel").locator(".value").first.wait_for()
    assert set(map(shorten, HOSTILE)) <= set(page.get_by_role("tabpanel").locator(".value").all_text_contents())
    assert page.locator("main img, main script, main iframe").count() == 0
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    assert not is_wider_than_the_window(page)
    page.close()


# ---- a publish -----------------------------------------------------------------


def test_cut_moves_at_a_publish_and_no_number_jumps(dashboard: Dashboard) -> None:
    table = table_path(dashboard.stack.settings, "web")
    wait_until("the archiver", lambda: coverage.of(table).rows >= dashboard.total, 90)
    numbers, watched = dashboard.page(HITS), dashboard.page("/#/lambda?source=web")
    wait_for_hits(numbers, dashboard.total)
    watched.get_by_text("No run yet: every answer").wait_for()
    published = watched.get_by_text(re.compile(r"Run 1 was published: the cut moved by"))
    seen: list[int] = []
    is_told = False
    with repeated(lambda: dashboard.send("/"), 0.5), batch_run(dashboard.stack) as is_done:
        while not is_done():
            # Both pages need a turn: Playwright tells a page of nothing while nobody asks it.
            for page in (numbers, watched):
                page.wait_for_timeout(100)
            shown = hits_of(numbers)
            assert shown is not None
            assert (seen[-1] if seen else 0) <= shown <= dashboard.total, "a number jumped"
            seen.append(shown)
            is_told = is_told or published.count() > 0  # for some seconds; the command may end later than that
    if not is_told:
        published.first.wait_for()
    assert watched.get_by_role("region", name="Runs, the newest first").locator("tbody tr").count() == 1
    assert re.search(r"cut [1-9]", watched.locator(".strip-text").first.inner_text())
    wait_for_hits(numbers, dashboard.total)
    numbers.locator(".chart .bar.batch").first.wait_for(state="attached")
    assert sorted(seen) == seen
    assert len(set(seen)) > 1, "events were counted while the run was made"
    dashboard.send("/after")
    wait_for_hits(numbers, dashboard.total)
    numbers.locator(".chart .bar.speed").first.wait_for(state="attached")
    numbers.close()
    watched.close()


class repeated:
    """Do something again and again while the block runs."""

    def __init__(self, what: Callable[[], None], every_s: float) -> None:
        self._what, self._every_s, self._done = what, every_s, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self._what()
        while not self._done.wait(self._every_s):
            self._what()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


class batch_run:
    """`tidemark batch run`, beside the block; gives what says whether it has ended, well."""

    def __init__(self, stack: Stack) -> None:
        self._said = stack.settings.home / "logs" / "batch_run.log"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tidemark", "batch", "run", "--source", "web"],
                env=child_environment(stack.settings), stdout=subprocess.DEVNULL, stderr=said,
            )  # fmt: skip
        self._deadline = time.monotonic() + 900  # seconds on a calm machine, minutes on a busy one

    def __enter__(self) -> Callable[[], bool]:
        return self._is_done

    def _is_done(self) -> bool:
        assert time.monotonic() < self._deadline, "the run takes too long"
        if self._process.poll() is None:
            return False
        assert self._process.returncode == 0, self._said.read_text()[-2000:]
        return True

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


# ---- a restart -----------------------------------------------------------------


def test_restart_of_the_server_is_survived_and_said(dashboard: Dashboard) -> None:
    page, overview = dashboard.page(HITS), dashboard.page("/")
    wait_for_hits(page, dashboard.total)
    overview.locator(".card").first.wait_for()
    psutil.Process(dashboard.stack.service("serving")["pid"]).kill()
    page.get_by_text("The server does not answer").wait_for()
    page.get_by_text("Connected again").wait_for()
    dashboard.send(*["/again"] * 3)
    wait_for_hits(page, dashboard.total)
    headline = overview.locator(".card", has_text="page_hits").locator(".headline")
    wait_until("the overview to follow", lambda: number_in(headline.inner_text()) == dashboard.total, 60)
    page.close()
    overview.close()


# ---- alerts --------------------------------------------------------------------


def attempts(dashboard: Dashboard, card: str, count: int) -> None:
    moment = datetime.now(UTC).isoformat()
    events = [
        {"event_id": f"{card}{number}{moment}", "event_time": moment, "card": card, "outcome": "declined"}
        for number in range(count)
    ]
    with dashboard.stack.client() as client:
        client.post("/events/cards", json=events).raise_for_status()


def test_alert_fires_and_is_over_on_every_page_and_is_listed(dashboard: Dashboard, artifacts: Path) -> None:
    page, card = dashboard.page("/#/explore"), HOSTILE[0]
    page.get_by_role("heading", name="Explore").wait_for()
    attempts(dashboard, card, 3)
    page.wait_for_timeout(1_500)
    assert page.locator(".notice", has_text="many_attempts").count() == 0, "three are not many"
    with repeated(lambda: attempts(dashboard, card, 9), 2):  # it fires for as long as they come
        fires = page.locator(".notice", has_text="many_attempts fires").first
        fires.wait_for()
        assert card in fires.inner_text()
        wait_until("the number of those that fire", lambda: page.locator("#firing").inner_text() == "1")
        page.screenshot(path=artifacts / "alert-fires.png")
        fires.get_by_role("link", name="Alerts").click()
        box = page.get_by_role("region", name="many_attempts", exact=True)
        box.get_by_text("attempts > 3").wait_for()
        box.get_by_text(card).wait_for()
    page.locator(".notice", has_text="many_attempts is resolved").first.wait_for()
    listed = page.get_by_role("region", name="Episodes, the newest first")
    listed.get_by_text(card).first.wait_for()
    listed.get_by_text("resolved", exact=True).first.wait_for()
    wait_until("nothing to fire", lambda: not page.locator("#firing").is_visible())
    page.close()


# ---- everybody -----------------------------------------------------------------

pytestmark = pytest.mark.in_order
PAGES = {
    "overview": ("/#/", ".card .spark"),
    "view": (HITS, ".rows-of-keys"),
    "latency": (LATENCY, ".chart .band"),
    "ranking": ("/#/views/top_pages", ".lists .value"),
    "lambda": ("/#/lambda", ".strip"),
    "sources": ("/#/sources?source=web", "section[aria-label=Fields] tbody tr"),
    "explore": ("/#/explore?view=page_hits&grain=1h&fill=zero&explain=true", ".tab-panel table"),
    "alerts": ("/#/alerts", "h1"),
    "api": ("/#/api/query_page_hits", ".operation[open] .members"),
}


def test_checker_of_accessibility_is_the_one_that_was_chosen() -> None:
    named = (VENDOR / "axe.sha256").read_text().split()[0]
    assert hashlib.sha256((VENDOR / "axe.min.js").read_bytes()).hexdigest() == named
    assert (VENDOR / "VERSION").read_text().strip() == "axe-core 4.14.0"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_fault_for_those_who_see_or_hear_otherwise(
    dashboard: Dashboard, browser: Browser, artifacts: Path, scheme: str
) -> None:
    """And none is wider than a phone. What they look like is kept, for people."""
    context = browser.new_context(color_scheme=scheme, storage_state=dashboard.context.storage_state())  # type: ignore[arg-type]
    context.add_init_script(path=VENDOR / "axe.min.js")
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    faults: list[str] = []
    for name, (path, there) in PAGES.items():
        for size, viewport in (("desktop", DESKTOP), ("phone", PHONE)):
            page.set_viewport_size(viewport)  # type: ignore[arg-type]
            page.goto(dashboard.stack.serving + path)
            page.locator(f"main {there}").first.wait_for(state="attached")
            page.locator(".waiting").wait_for(state="detached")
            page.screenshot(path=artifacts / f"{name}-{size}-{scheme}.png", full_page=True)
            faults += [f"{name} {size} is wider than the window"] if is_wider_than_the_window(page) else []
            faults += [f"{name} {size} {fault}" for fault in serious(page)]
    signed_out = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
    signed_out.add_init_script(path=VENDOR / "axe.min.js")
    page = signed_out.new_page()
    page.goto(dashboard.stack.serving)
    page.get_by_role("heading", name="Sign in").wait_for()
    page.screenshot(path=artifacts / f"sign-in-{scheme}.png")
    faults += [f"sign-in {fault}" for fault in serious(page)]
    signed_out.close()
    context.close()
    assert faults == []


@pytest.mark.parametrize("name", ["view", "lambda", "explore"])
def test_keyboard_alone_reaches_everything(dashboard: Dashboard, name: str) -> None:
    path, there = PAGES[name]
    page = dashboard.page(path)
    page.locator(f"main {there}").first.wait_for(state="attached")
    assert out_of_reach(page) == []
    page.close()


def test_keyboard_alone_signs_in_filters_and_reads_the_chart(dashboard: Dashboard, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(dashboard.stack.serving + HITS)
    page.get_by_role("heading", name="Sign in").wait_for()
    wait_until("the secret to have the focus", lambda: page.evaluate("() => document.activeElement.name") == "password")
    page.keyboard.type(dashboard.stack.secret)
    page.keyboard.press("Enter")
    wait_for_hits(page, dashboard.total)
    page.get_by_role("button", name="/docs", exact=True).focus()
    page.keyboard.press("Enter")
    wait_for_hits(page, 12)
    page.locator(".chart").focus()

    def says_of_a_late_period(text: str) -> bool:
        """The newest, or the one before it: an hour may have ended since the events were sent."""
        for key in ("End", "ArrowLeft"):
            page.keyboard.press(key)
            if text in page.locator("#announcement").inner_text():
                return True
        return False

    wait_until("the chart to be read out", lambda: says_of_a_late_period("hits 12"))
    page.get_by_role("button", name="Sign out").focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Sign in").wait_for()
    context.close()


def test_no_secret_was_in_any_address_and_nothing_was_asked_of_anybody_else(dashboard: Dashboard) -> None:
    assert len(dashboard.urls) > 100
    ours = (f"{dashboard.stack.serving}/", f"{dashboard.stack.serving.replace('http', 'ws')}/", "blob:")
    assert [url for url in dashboard.urls if dashboard.stack.secret in url or not url.startswith(ours)] == []
