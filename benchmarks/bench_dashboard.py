"""How soon the dashboard is painted and how much it loads, beside the emptiest page of the same server.

    python benchmarks/bench_dashboard.py [--rounds 7]

The reference view with made-up states, no Redis: answers are degraded, and say so. Each round is a browser context of
its own, with an empty cache, signed in beforehand: cold. The floor is GET /health, a page of a few letters. Chromium of
this machine (`make browser`), by Playwright.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import report
from made_home import MadeHome
from playwright.sync_api import Browser, sync_playwright

from infra.rest.access_keys import add_key
from infra.settings import child_environment

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
STATES, DAYS = 20_000, 3
AIM_KB, AIM_MS = 200, 1_000
PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
LOADED = """() => [performance.getEntriesByType('navigation')[0], ...performance.getEntriesByType('resource')]
    .filter((each) => each.name.endsWith('/') || each.name.includes('/dashboard/'))
    .reduce((sum, each) => sum + each.transferSize, 0)"""
NOW = "() => performance.now()"


def main() -> None:
    """Measure, and write the result and the page."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=7, help="how often each is measured")
    given = arguments.parse_args()
    os.environ["TIDEMARK_CONFIG"] = os.devnull
    with tempfile.TemporaryDirectory(prefix="dashboard-bench-") as folder, serving(Path(folder)) as (address, secret):
        found = measure(address, secret, given.rounds)
    first, whole, floor = (report.median(found[name]) for name in ("painted", "numbers", "floor"))
    size_kb = statistics.median(found["loaded"]) / 1000
    text = report.table(
        ("", "median (least – most)", "aim"),
        ("first paint of the dashboard, cold", _ms(first), f"below {AIM_MS} ms"),
        ("until the first view has its number", _ms(whole), ""),
        ("first paint of GET /health (floor)", _ms(floor), ""),
        ("first paint, times the floor", f"{first['median'] / floor['median']:.1f}", ""),
        ("loaded, compressed, with headers", f"{size_kb:.0f} kB", f"below {AIM_KB} kB"),
    )
    result = {"painted_ms": first, "numbers_ms": whole, "floor_ms": floor, "loaded_kb": round(size_kb, 1)}
    report.write("dashboard", "The dashboard, in a browser with an empty cache", result, text)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, str]]:
    """A serving process on a made-up home; gives its address and the secret of a key."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = MadeHome(folder / "made", STATES, DAYS, redis_url="redis://127.0.0.1:1/0", serving_port=port)
    home.make(map)
    secret = add_key(home.settings.home, "bench", ["query"])
    address = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, "-P", "-m", "serving_layer"], env=child_environment(home.settings))
    try:
        _wait(address)
        yield address, secret
    finally:
        process.terminate()
        process.wait()


def _wait(address: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{address}/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit("The serving layer did not come up.")


def measure(address: str, secret: str, rounds: int) -> dict[str, list[float]]:
    """In turns, so that a busy moment hits both alike. The first round warms the browser, and does not count."""
    found: dict[str, list[float]] = {"painted": [], "numbers": [], "floor": [], "loaded": []}
    with sync_playwright() as playwright:
        path = os.environ.get("TIDEMARK_CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        state = _signed_in(browser, address, secret)
        for number in range(rounds + 1):
            floor = _painted(browser, state, f"{address}/health")
            context = browser.new_context(storage_state=state)
            page = context.new_page()
            page.goto(f"{address}/")
            page.locator(".card .headline").first.wait_for()
            numbers = page.evaluate(NOW)
            measured = (page.evaluate(PAINTED), numbers, floor, page.evaluate(LOADED))
            context.close()
            if number:
                for name, value in zip(found, measured, strict=True):
                    found[name].append(value)
        browser.close()
    return found


def _signed_in(browser: Browser, address: str, secret: str) -> Any:
    context = browser.new_context()
    answer = context.request.post(f"{address}/session", data={"name": "bench", "secret": secret})
    assert answer.ok, answer.text()
    state = context.storage_state()
    context.close()
    return state


def _painted(browser: Browser, state: Any, address: str) -> float:
    context = browser.new_context(storage_state=state)
    page = context.new_page()
    page.goto(address)
    found = None
    while found is None:  # it is painted a moment after it was loaded
        found = page.evaluate(PAINTED)
    context.close()
    return float(found)


def _ms(measured: dict[str, float]) -> str:
    return f"{measured['median']:.0f} ms ({measured['least']:.0f} – {measured['most']:.0f})"


if __name__ == "__main__":
    main()
