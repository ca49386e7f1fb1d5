"""What the tests of all pages do and look for: signing in, faults that axe finds, what a keyboard cannot reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

VENDOR = Path(__file__).with_name("vendor")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "/" + "long/" * 600,
    "\u202eevil\u202c שלום مرحبا",
    "🌊👩‍👩‍👧‍👦",
    "javascript:alert(3)",
    "' onmouseover='alert(4)",
)
PATIENCE_MS = 60_000


def watch(page: Page, urls: list[str], wrongs: list[str]) -> None:
    """Every address that the page asks, and everything that must never be: a dialog, a bug, a broken policy."""
    page.on("request", lambda request: urls.append(request.url))
    page.on("websocket", lambda socket: urls.append(socket.url))
    page.on("pageerror", lambda error: wrongs.append(f"{error}"))
    page.on("dialog", lambda dialog: (wrongs.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on("console", lambda said: wrongs.append(said.text) if "Content Security Policy" in said.text else None)


def sign_in(page: Page, name: str, secret: str) -> None:
    page.get_by_label("Key", exact=True).fill(name)
    page.get_by_label("Secret").fill(secret)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="Lambda").wait_for()


def is_wider_than_the_window(page: Page) -> bool:
    width, window = page.evaluate("() => [document.documentElement.scrollWidth, window.innerWidth]")
    return bool(width > window)


def serious(page: Page) -> list[str]:
    found: dict[str, Any] = page.evaluate("() => window.axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {each['help']}: {[node['html'][:160] for node in each['nodes'][:3]]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]


FOCUSED = """() => {
    const found = document.activeElement;
    if (!found || found === document.body) return null;
    const all = [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')];
    return all.indexOf(found);
}"""
REACHABLE = """() => [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')]
    .map((each, index) => [index, each])
    .filter(([, each]) => each.checkVisibility({visibilityProperty: true}) && each.tabIndex >= 0 && !each.disabled)
    .map(([index, each]) => [index, each.outerHTML.slice(0, 120)])"""


def out_of_reach(page: Page) -> list[str]:
    """What is shown, could have the focus, and does not get it by Tab."""
    wanted = dict(page.evaluate(REACHABLE))
    page.evaluate("() => { document.activeElement.blur(); window.scrollTo(0, 0); }")
    reached: set[int] = set()
    for _ in range(len(wanted) + 20):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        if focused is not None:
            reached.add(focused)
    return [html for number, html in wanted.items() if number not in reached]
