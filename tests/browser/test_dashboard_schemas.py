"""The dashboard's page of schemas in a real browser: what the collector's registry has, for keys that may read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page

from infra.rest.access_keys import add_key
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
)
from tests.conftest import Stack, start_stack, stop_stack, wait_until

ORDERS = """
from pathlib import Path
from tidemark import Count, Source, Sum, View

orders = Source("orders", format="avro", reader_schema='''{reader}''', id_field="order_id", time_field="at")
answers = {{"sold": Count(), "cents": Sum("cents")}}
sales = View("sales", source=orders, grain="1d", keys={{"item": "item"}}, answers=answers)
"""
FIELDS: list[dict[str, Any]] = [
    {"name": "order_id", "type": "string"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "item", "type": "string"},
    {"name": "cents", "type": "long"},
]
COUPON = {"name": "coupon", "type": ["null", "string"], "default": None, "doc": HOSTILE[0]}
FIRST = {"type": "record", "name": "Order", "fields": FIELDS}
SECOND = {**FIRST, "fields": [*FIELDS, COUPON]}
READER = {**FIRST, "fields": [*FIELDS, {"name": "note", "type": ["null", "string"], "default": None}]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Collector and serving layer: no JVM but Kafka's."""
    views = tmp_path_factory.mktemp("schemas") / "views"
    views.mkdir()
    (views / "orders.py").write_text(ORDERS.format(reader=json.dumps(READER)))
    running = start_stack(
        views.parent / "home", serving_enabled=True, start_timeout_s=300, views_dir=views, with_examples=False
    )
    register(running, "orders-value", FIRST)
    register(running, "orders-value", SECOND)
    register(running, "secret/of others", {"type": "record", "name": "Other", "fields": []})
    register(running, "plain", {"type": "object", "properties": {"a": {"type": "string"}}}, "JSON")
    yield running
    stop_stack(running)


def register(stack: Stack, subject: str, schema: Any, type: str = "AVRO") -> None:
    path = f"{stack.collector}/schema-registry/subjects/{subject.replace('/', '%2F')}/versions"
    body = {"schema": json.dumps(schema), "schemaType": type}
    reply = wait_until("the registry", lambda: _posted(path, body, stack.secret), 60)
    assert reply.status_code == 200, reply.text


def _posted(path: str, body: Any, secret: str) -> httpx.Response | None:
    reply = httpx.post(path, json=body, auth=("admin", secret), timeout=30)
    return None if reply.status_code == 503 else reply


class Opened:
    """A page of somebody who signed in."""

    def __init__(self, browser: Browser, stack: Stack, name: str, secret: str, **of_context: Any) -> None:
        self.context = browser.new_context(**of_context)
        self.context.add_init_script(path=VENDOR / "axe.min.js")
        self.stack, self.urls, self.wrongs = stack, list[str](), list[str]()
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
        watch(self.page, self.urls, self.wrongs)
        self.page.goto(stack.serving)
        sign_in(self.page, name, secret)

    def go(self, path: str) -> None:
        self.page.goto(self.stack.serving + path)

    def __enter__(self) -> Page:
        return self.page

    def __exit__(self, *_: object) -> None:
        self.context.close()
        assert self.wrongs == []


def texts(page: Page, selector: str) -> list[str]:
    return [each.strip() for each in page.locator(selector).all_inner_texts()]


def test_versions_of_a_subject_are_compared_and_their_fields_lead_to_views(
    whole: Stack, browser: Browser, artifacts: Path
) -> None:
    with Opened(browser, whole, "admin", whole.secret) as page:
        page.get_by_role("link", name="Schemas").click()
        page.locator("section[aria-label=Subjects] tbody tr").first.wait_for()
        rows = texts(page, "section[aria-label=Subjects] tbody tr td:first-child")
        assert rows == ["orders-value", "plain", "secret/of others"]
        page.screenshot(path=artifacts / "schemas-desktop.png", full_page=True)
        page.get_by_role("link", name="orders-value").click()
        page.locator(".diff").wait_for()
        added = "".join(texts(page, ".diff ins"))
        assert '"coupon"' in added
        assert HOSTILE[0] in added, "as it was registered, and nothing but text"
        page.screenshot(path=artifacts / "schema-desktop.png", full_page=True)
        fields = page.locator("section[aria-label='Fields of orders']")
        used = {row[0]: row[2:] for row in (each.split("\t") for each in fields.locator("tbody tr").all_inner_texts())}
        assert used["cents"] == ["sales", "yes"]
        assert used["note"] == ["", "no"]
        page.get_by_label("Version").select_option("1")
        page.get_by_role("heading", name="Version 1", exact=True).wait_for()
        assert page.locator(".diff").count() == 0
        page.get_by_label("Compared with").select_option("2")
        page.locator(".diff del").first.wait_for()
        assert '"coupon"' in "".join(texts(page, ".diff del"))
        assert page.url.endswith("#/schemas/orders-value?version=1&compared=2")
        page.reload()
        page.locator(".diff del").first.wait_for()
        fields.get_by_role("link", name="sales").first.click()
        page.get_by_role("heading", name="sales").first.wait_for()
        page.goto(f"{whole.serving}/#/sources?source=orders")
        page.get_by_role("link", name="orders-value").click()
        page.locator(".diff").wait_for()
        page.goto(f"{whole.serving}/#/schemas/secret%2Fof%20others")
        page.get_by_role("heading", name="secret/of others").wait_for()
        page.goto(f"{whole.serving}/#/schemas/none")
        page.get_by_text("There is no subject 'none'").wait_for()


def test_schemas_are_shown_to_those_alone_who_may_read_them(whole: Stack, browser: Browser) -> None:
    home = whole.settings.home
    queries = add_key(home, "queries", ["query"])
    some = add_key(home, "some", ["query", "schema:read"], ["sales"], subjects=["orders-*"])
    with Opened(browser, whole, "queries", queries) as page:
        assert page.get_by_role("link", name="Schemas").count() == 0
        page.goto(f"{whole.serving}/#/schemas")
        page.get_by_text("this needs schema:read").wait_for()
    with Opened(browser, whole, "some", some) as page:
        page.get_by_role("link", name="Schemas").click()
        page.locator("section[aria-label=Subjects] tbody tr").first.wait_for()
        assert texts(page, "section[aria-label=Subjects] tbody tr td:first-child") == ["orders-value"]
        page.goto(f"{whole.serving}/#/schemas/plain")
        page.get_by_text("is limited to the subjects orders-*").wait_for()
    with httpx.Client(base_url=whole.serving, auth=("some", some)) as client:
        assert client.get("/schemas/orders-value?version=3").status_code == 404
        assert client.get("/schemas/orders-value?version=x").status_code == 422
        assert client.get("/schemas?version=1").status_code == 422
    schemas_alone = add_key(home, "schemas-alone", ["schema:read"])
    with httpx.Client(base_url=whole.serving, auth=("schemas-alone", schemas_alone)) as client:
        found = client.get("/schemas").json()["subjects"]
        assert [(each["subject"], each["sources"]) for each in found] == [
            ("orders-value", []), ("plain", []), ("secret/of others", []),
        ]  # fmt: skip
        assert client.get("/schemas/orders-value").json()["sources"] == [], "views are for keys that may query"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_of_schemas_have_no_serious_fault(whole: Stack, browser: Browser, artifacts: Path, scheme: str) -> None:
    faults: list[str] = []
    with Opened(browser, whole, "admin", whole.secret, color_scheme=scheme) as page:
        for name, path, there in (
            ("schemas", "/#/schemas", "section[aria-label=Subjects] tbody tr"),
            ("schema", "/#/schemas/orders-value", ".diff"),
            ("framed-source", "/#/sources?source=orders", "section[aria-label=Fields] tbody tr"),
        ):
            for size, viewport in (("desktop", DESKTOP), ("phone", PHONE)):
                page.set_viewport_size(viewport)  # type: ignore[arg-type]
                page.goto(whole.serving + path)
                page.locator(f"main {there}").first.wait_for()
                page.screenshot(path=artifacts / f"{name}-{size}-{scheme}.png", full_page=True)
                faults += [f"{name} {size} is wider than the window"] if is_wider_than_the_window(page) else []
                faults += [f"{name} {size} {fault}" for fault in serious(page)]
        assert out_of_reach(page) == []
    assert faults == []


def test_a_version_that_is_registered_is_there_soon(whole: Stack) -> None:
    """The serving layer reads the topic; it asks nobody."""
    with whole.asking() as client:
        described = client.get("/schemas/orders-value").json()
        assert (described["version"], described["compared"]["version"], described["level"]) == (2, 1, "BACKWARD")
        assert json.loads(described["text"]) == SECOND
        register(whole, "orders-value", {**SECOND, "fields": [*FIELDS, COUPON, {**COUPON, "name": "c2"}]})
        wait_until("the new version", lambda: client.get("/schemas/orders-value").json()["version"] == 3)
