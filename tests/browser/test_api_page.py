"""The page of the API in a real browser: all of the description is there, a GET can be tried, and text stays text.

The server answers as a test directs it (tests/process/serving_server.py): what answers say is other tests' matter.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route

from infra.rest.access_keys import add_key
from serving_layer.errors import TooLarge
from serving_layer.push.live_queries import QueryChannel
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
from tests.conftest import wait_until
from tests.process.serving_server import Served, serving

UNFOLD = """all => { for (const each of all) each.open = true; return all.length; }"""
TITLES = """() => [...document.querySelectorAll(".operation")].map(each =>
    [each.querySelector(".method").textContent.toLowerCase(), each.querySelector(".path").textContent])"""
LISTED = """label => [...document.querySelectorAll(`[aria-label="${label}"] > li > .value-head > .name`)]
    .map(each => each.textContent)"""


@dataclass
class ApiPage:
    """A server, a browser that is signed in to it, and everything that its pages asked and got wrong."""

    served: Served
    context: BrowserContext
    document: dict[str, Any]
    secret: str
    urls: list[str] = field(default_factory=list)
    wrongs: list[str] = field(default_factory=list)

    def page(self, path: str = "/docs", viewport: dict[str, int] | None = None) -> Page:
        page = self.context.new_page()
        page.set_viewport_size(viewport or DESKTOP)  # type: ignore[arg-type]
        page.set_default_timeout(PATIENCE_MS)
        watch(page, self.urls, self.wrongs)
        page.goto(self.served.address + path)
        return page

    def resolve(self, given: dict[str, Any]) -> dict[str, Any]:
        found: Any = given
        while "$ref" in found:
            names = found["$ref"].split("/")[1:]
            found = self.document
            for name in names:
                found = found[name]
        return dict(found)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("api") / "home") as running:
        yield running


@pytest.fixture(scope="module")
def api_page(served: Served, browser: Browser) -> Iterator[ApiPage]:
    context = browser.new_context()
    secret = add_key(served.home, "ann", ["query"])
    found = ApiPage(served, context, served.client.get("/openapi.json").json(), secret)
    page = found.page()
    sign_in(page, "ann", secret)
    page.get_by_role("heading", name="API").wait_for()
    page.close()
    yield found
    context.close()


@pytest.fixture(autouse=True)
def _nothing_wrong(api_page: ApiPage) -> Iterator[None]:
    yield
    assert api_page.wrongs == []
    assert [url for url in api_page.urls if not url.startswith((f"{api_page.served.address}/", "blob:"))] == []
    assert [url for url in api_page.urls if api_page.secret in url] == []


def test_a_view_that_cannot_be_answered_leaves_the_other_cards_of_the_overview(api_page: ApiPage) -> None:
    """Its card says why. It is asked again, and shows its answer as soon as there is one."""
    api_page.served.engine.failures = {"page_hits": TooLarge("The query needs too many states.")}
    page = api_page.page("/")
    card = page.locator(".card", has_text="page_hits")
    card.get_by_text("The query needs too many states.").wait_for()
    others = page.locator(".card:not(.is-degraded)")
    wait_until("the other cards", lambda: others.count() == page.locator(".card").count() - 1, 60)
    labels = others.locator(".headline-label")
    wait_until("their answers", lambda: all(" in " in label for label in labels.all_inner_texts()), 60)
    api_page.served.engine.failures = {}
    card.get_by_text("hits in 24h").wait_for()
    page.close()


def opened(page: Page, operation: str) -> Locator:
    """An operation, with its form."""
    page.goto(re.sub("/#.*|/docs$", f"/#/api/{operation}", page.url))
    found = page.locator(".operation[open]")
    found.locator(".try > summary").click()
    found.locator("form").wait_for()
    return found


def unfold(page: Page, what: str) -> None:
    """These and everything in them, and what that brings to light."""
    folded = page.locator(f"{what}:not([open]), {what} details:not([open])")
    wait_until(f"{what} to be unfolded", lambda: folded.evaluate_all(UNFOLD) == 0)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


# ---- what is listed ------------------------------------------------------------


def test_docs_lead_to_every_request_of_the_description(api_page: ApiPage) -> None:
    page = api_page.page("/docs")
    page.locator(".operation").first.wait_for()
    assert page.url == f"{api_page.served.address}/#/api"
    assert page.title() == "API · Tidemark"
    assert page.locator("#nav [aria-current=page]").inner_text() == "API"
    expected = sorted((method, path) for method, path, _ in operations(api_page.document))
    assert len(expected) > 20
    assert sorted(map(tuple, page.evaluate(TITLES))) == expected
    page.get_by_text(f"{len(expected)} requests").wait_for()
    page.close()


def test_everything_said_of_a_request_is_shown_and_every_reference_followed(api_page: ApiPage) -> None:
    page = api_page.page()
    page.locator(".operation").first.wait_for()
    unfold(page, ".operation")
    for method, path, operation in operations(api_page.document):
        title = f"{method.upper()} {path}"
        parameters = [api_page.resolve(each)["name"] for each in operation["parameters"]]
        assert page.evaluate(LISTED, f"Parameters of {title}") == parameters, title
        statuses = [{"default": "otherwise"}.get(status, status) for status in operation["responses"]]
        assert page.evaluate(LISTED, f"Answers of {title}") == statuses, title
    shown = page.locator("main").text_content() or ""
    for text in ("$ref", "undefined", "[object"):
        assert text not in shown
    asked = page.locator(".operation", has=page.get_by_text("/views/page_hits/query", exact=True))
    order = asked.get_by_role("list", name="Parameters of ").locator("> li", has_text="Columns to sort by").first
    assert "array of string · in query" in order.inner_text()
    assert "allowed bucket, url, hits, visitors, -bucket" in order.inner_text()
    limit = asked.get_by_role("list", name="Parameters of ").locator("> li", has_text="Rows of a page").first
    assert "default 1000 range 1 to 10000 example 100" in " ".join(limit.inner_text().split())
    members = asked.locator(".members .members .name").all_inner_texts()
    assert {"rows", "bucket", "hits", "next", "meta", "batch", "cut", "published"} <= set(members)
    assert '"view": "page_hits"' in asked.locator("pre").first.inner_text()
    page.close()


def test_key_that_may_see_one_view_finds_the_requests_of_that_one(api_page: ApiPage, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{api_page.served.address}/docs")
    sign_in(page, "one", add_key(api_page.served.home, "one", ["query"], ["page_latency"]))
    page.locator(".operation").first.wait_for()
    paths = {path for _, path in page.evaluate(TITLES)}
    assert "/views/page_latency/query" in paths
    assert not [path for path in paths if "page_hits" in path]
    context.close()


def test_search_narrows_the_list_and_stands_in_the_address(api_page: ApiPage) -> None:
    page = api_page.page()
    search = page.get_by_label("Search")
    search.fill("alerts GET")
    wait_until("fewer", lambda: page.locator(".operation:visible").count() < 5)
    found = set(page.locator(".path:visible").all_inner_texts())
    assert found == {"/alerts", "/alerts/history", "/watches"}
    assert page.locator("main section:visible").count() == 1
    assert re.search(r"^3 of \d+ requests$", page.get_by_role("status").filter(has_text="requests").inner_text())
    page.reload()
    wait_until("the same", lambda: page.locator(".operation:visible").count() == 3)
    search.fill("nothing has this")
    page.get_by_text("No request has all of these words.").wait_for()
    search.fill("min_cut")
    wait_until("by a parameter", lambda: 0 < page.locator(".operation:visible").count() < 10)
    page.close()


# ---- trying --------------------------------------------------------------------


def test_get_can_be_tried_and_its_answer_is_shown_with_status_time_and_headers(api_page: ApiPage) -> None:
    page = api_page.page()
    asked = opened(page, "query_page_hits")
    asked.get_by_label("from", exact=True).fill("2026-03-01")
    asked.get_by_label("to", exact=True).fill("2026-03-02")
    asked.get_by_label("url", exact=True).fill("/a b\n/c,d&e")
    asked.get_by_label("explain").select_option("false")
    asked.get_by_label("to", exact=True).press("Enter")
    answer = asked.get_by_role("region", name="Answer to GET /views/page_hits/query")
    body = answer.get_by_role("region", name="Body of the answer")
    body.wait_for()
    assert re.fullmatch(r"200 OK after \d+ ms", answer.locator(".status").inner_text())
    expected = api_page.served.client.get(
        "/views/page_hits/query", params={"from": "2026-03-01", "to": "2026-03-02", "url": ["/a b", "/c,d&e"]}
    )
    assert json.loads(body.inner_text()) == expected.json()
    assert api_page.served.engine.asked[-1].filters == api_page.served.engine.asked[-2].filters
    assert len(body.inner_text().splitlines()) > 20, "a member a line"
    headers = dict(zip(answer.locator("dt").all_inner_texts(), answer.locator("dd").all_inner_texts(), strict=True))
    assert headers["etag"] == expected.headers["etag"]
    assert headers["content-type"] == "application/json"
    assert "200" in page.locator("#announcement").inner_text(), "who listens is told too"
    answer.get_by_role("button", name="Send again with this ETag").click()
    answer.get_by_text(re.compile("^304")).wait_for()
    assert body.count() == 0
    page.close()


def test_refusal_is_shown_as_the_server_says_it(api_page: ApiPage) -> None:
    page = api_page.page()
    asked = opened(page, "query_page_hits")
    asked.get_by_label("grain").fill("fortnight")
    asked.get_by_role("button", name="Send", exact=True).click()
    answer = asked.get_by_role("region", name="Answer to ")
    answer.get_by_text(re.compile("^400|^422")).wait_for()
    assert "fortnight" in answer.get_by_role("region", name="Body of the answer").inner_text()
    page.close()


def test_name_in_a_path_is_chosen_among_those_there_are(api_page: ApiPage) -> None:
    page = api_page.page()
    asked = opened(page, "describe_view")
    asked.get_by_role("combobox", name="name").select_option("page_latency")
    asked.get_by_role("button", name="Send", exact=True).click()
    body = asked.get_by_role("region", name="Body of the answer")
    body.wait_for()
    assert json.loads(body.inner_text())["name"] == "page_latency"
    page.close()


def test_large_numbers_keep_their_digits_and_other_formats_their_lines(api_page: ApiPage) -> None:
    page = api_page.page()
    asked = opened(page, "query_page_hits")
    body = asked.get_by_role("region", name="Body of the answer")
    api_page.served.engine.number = 2**63 - 1
    asked.get_by_role("button", name="Send", exact=True).click()
    body.get_by_text("9223372036854775807").wait_for()
    asked.get_by_label("format").select_option("ndjson")
    asked.get_by_role("button", name="Send", exact=True).click()
    asked.locator("dd", has_text="application/x-ndjson").wait_for()
    wait_until(
        "lines", lambda: body.inner_text().startswith('{"bucket":') and "9223372036854775807" in body.inner_text()
    )
    api_page.served.engine.number = 1
    page.close()


def queries_followed(api_page: ApiPage) -> int:
    """The connections that follow a query; every page follows the alerts besides."""
    channels = list(api_page.served.app.state.live.channels.values())
    return sum(len(each.mailboxes) for each in channels if isinstance(each, QueryChannel))


def test_live_feed_is_shown_as_it_comes_until_it_is_stopped(api_page: ApiPage) -> None:
    page = api_page.page()
    asked = opened(page, "follow_page_hits")
    api_page.served.engine.number = 71
    asked.get_by_label("grain").fill("all")
    asked.get_by_role("button", name="Send", exact=True).click()
    body = asked.get_by_role("region", name="Body of the answer")
    body.get_by_text('"hits":71').wait_for()
    api_page.served.engine.number = 72
    body.get_by_text('"hits":72').wait_for()
    assert queries_followed(api_page) == 1
    asked.get_by_role("button", name="Stop").click()
    asked.get_by_text("Stopped.").wait_for()
    wait_until("the feed to end", lambda: queries_followed(api_page) == 0)
    asked.get_by_role("button", name="Send", exact=True).click()
    wait_until("the feed to begin", lambda: queries_followed(api_page) == 1)
    page.get_by_role("link", name="Explore").click()
    wait_until("the feed to end with the page", lambda: queries_followed(api_page) == 0)
    api_page.served.engine.number = 1
    page.close()


def test_address_that_is_chosen_while_another_request_opens_is_shown(api_page: ApiPage) -> None:
    """The toggle of the one comes after the address of the other, and before the page has heard of that."""
    page = api_page.page("/#/api")
    page.locator(".operation").first.wait_for()
    page.evaluate("() => { document.querySelector('.operation').open = true; location.hash = '#/api/query'; }")
    page.locator(".operation[open]", has=page.get_by_text("/query", exact=True)).wait_for()
    assert page.evaluate("() => location.hash") == "#/api/query"
    page.close()


def test_copied_command_asks_what_the_form_asks(api_page: ApiPage) -> None:
    api_page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = api_page.page()

    def run(button: Locator) -> Any:
        button.click()
        page.get_by_role("button", name="Copied").first.wait_for()
        copied = page.evaluate("() => navigator.clipboard.readText()")
        assert api_page.secret not in copied
        asked = subprocess.run(
            ["bash", "-c", copied.replace("curl ", "curl -s ")],
            env={"SECRET": api_page.secret, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return json.loads(asked.stdout)

    asked = opened(page, "query_page_hits")
    asked.get_by_label("from", exact=True).fill("2026-03-01")
    asked.get_by_label("to", exact=True).fill("2026-03-03")
    asked.get_by_label("grain").fill("day")
    asked.get_by_label("url.not").fill("it's")
    assert len(run(asked.get_by_role("button", name="Copy as curl"))["rows"]) == 2
    page.goto(f"{api_page.served.address}/#/api/query")
    posted = page.locator(".operation[open]", has=page.get_by_text("/query", exact=True))
    assert run(posted.get_by_role("button", name="Copy as curl"))["meta"]["range"]["grain"] == "day"
    page.close()


def test_session_that_has_ended_leads_to_signing_in_and_back(api_page: ApiPage, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{api_page.served.address}/#/api/list_views")
    sign_in(page, "ann", api_page.secret)
    page.locator(".operation[open] .try > summary").click()
    context.clear_cookies()
    page.locator(".operation[open]").get_by_role("button", name="Send", exact=True).click()
    page.get_by_role("heading", name="Sign in").wait_for()
    sign_in(page, "ann", api_page.secret)
    page.locator(".operation[open]").get_by_text("/views", exact=True).wait_for()
    context.clear_cookies()
    page.get_by_role("link", name="Explore").click()
    page.get_by_role("heading", name="Sign in").wait_for()
    page.get_by_label("Secret").wait_for()
    context.close()


def test_page_that_comes_too_late_is_not_drawn_over_the_one_that_was_chosen_since(api_page: ApiPage) -> None:
    held: list[Route] = []
    page = api_page.page("/#/explore")
    page.get_by_role("heading", name="Explore").wait_for()
    page.route(f"{api_page.served.address}/openapi.json", lambda route: held.append(route))
    page.get_by_role("link", name="API").click()
    page.wait_for_function("() => document.querySelector('#nav [aria-current]').dataset.page === 'api'")
    page.get_by_role("link", name="Explore").click()
    page.wait_for_function("() => location.hash.startsWith('#/explore?')")
    with page.expect_event("requestfinished", lambda request: request.url.endswith("/openapi.json")):
        held[0].continue_()
    page.evaluate("() => new Promise(done => setTimeout(done, 100))")
    assert page.locator("h1").inner_text() == "Explore"
    assert "#/explore?" in page.url
    page.close()


# ---- hostile -------------------------------------------------------------------


def test_hostile_descriptions_stay_text(api_page: ApiPage) -> None:
    page = api_page.context.new_page()
    watch(page, api_page.urls, api_page.wrongs)
    page.route(f"{api_page.served.address}/openapi.json", lambda route: route.fulfill(json=hostile(api_page.document)))
    page.goto(f"{api_page.served.address}/docs")
    page.locator(".operation").first.wait_for()
    unfold(page, ".operation")
    shown = page.locator("main").text_content() or ""
    assert [text for text in HOSTILE if shown.count(text) < 10] == []
    assert page.locator("main img, main script, main iframe").count() == 0
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    assert not is_wider_than_the_window(page)
    page.close()


def hostile(document: dict[str, Any]) -> dict[str, Any]:
    """A description that has a hostile text wherever it has one of its own, and leads in circles."""
    paths, schemas = {}, {}
    for number, text in enumerate(HOSTILE):
        name = f"own{number}"
        member = {"type": text, "enum": [text], "default": text, "pattern": text, "examples": [text]}
        schemas[name] = {"type": "object", "description": text, "required": [text], "properties": {text: member}}
        header = {"description": text}
        content = {text: {"schema": {"$ref": f"#/components/schemas/{name}"}, "example": {text: text}}}
        parameter = {"name": text, "in": text, "description": text, "schema": {"type": "string"}, "example": text}
        paths[f"/{text}"] = {
            "get": {
                "operationId": text, "tags": [text], "summary": text, "description": f"{text}\n\n- {text}\n- `{text}`",
                "parameters": [parameter], "requestBody": {"content": content},
                "responses": {text: {"description": text, "content": content, "headers": {text: header}}},
            }
        }  # fmt: skip
    circle, nowhere = ({"$ref": f"#/components/schemas/{name}"} for name in ("circle", "nowhere"))
    schemas["circle"] = {"anyOf": [{"type": "array", "items": circle}, nowhere]}
    paths["/circle"] = {"get": {"responses": {"200": {"description": "", "content": {"a/b": {"schema": circle}}}}}}
    return {**document, "paths": paths, "components": {"schemas": schemas}}


# ---- everybody -----------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_fault_for_those_who_see_or_hear_otherwise(
    api_page: ApiPage, browser: Browser, artifacts: Path, scheme: str
) -> None:
    context = browser.new_context(color_scheme=scheme, storage_state=api_page.context.storage_state())  # type: ignore[arg-type]
    context.add_init_script(path=VENDOR / "axe.min.js")
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    faults: list[str] = []
    looks: dict[str, Callable[[], None]] = {
        "list": lambda: page.locator(".operation").first.wait_for(),
        "tried": lambda: tried(page),
        "unfolded": lambda: unfold(page, ".operation[open]"),
    }
    for size, viewport in (("desktop", DESKTOP), ("phone", PHONE)):
        page.set_viewport_size(viewport)  # type: ignore[arg-type]
        page.goto(f"{api_page.served.address}/docs")
        page.reload()
        for name, look in looks.items():
            look()
            page.screenshot(path=artifacts / f"api-{name}-{size}-{scheme}.png", full_page=True)
            faults += [f"{name} {size} is wider than the window"] if is_wider_than_the_window(page) else []
            faults += [f"{name} {size} {fault}" for fault in serious(page)]
    context.close()
    assert faults == []


def tried(page: Page) -> None:
    asked = opened(page, "query_page_hits")
    asked.get_by_role("button", name="Send", exact=True).click()
    asked.get_by_role("region", name="Body of the answer").wait_for()


def test_keyboard_alone_finds_opens_and_tries_a_request(api_page: ApiPage) -> None:
    page = api_page.page()
    page.locator(".operation").first.wait_for()
    assert out_of_reach(page) == []
    page.get_by_label("Search").focus()
    page.keyboard.type("health")
    wait_until("few", lambda: page.locator(".operation:visible").count() < 5)
    summary = page.locator(".operation:visible summary", has_text="Whether the process runs").first
    for key in ("Tab", "Tab"):  # past the link to the description
        page.keyboard.press(key)
    wait_until("the focus", lambda: summary.evaluate("each => each === document.activeElement"))
    for key in ("Enter", "Tab", "Enter", "Tab", "Enter"):  # the request, its form, and Send
        page.keyboard.press(key)
    body = page.get_by_role("region", name="Body of the answer")
    body.wait_for()
    assert json.loads(body.inner_text()) == {"status": "ok"}
    assert out_of_reach(page) == []
    page.close()
