"""Access: what a browser adds by itself to the requests of foreign pages changes nothing."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from starlette.requests import HTTPConnection

from infra.rest.access import Access
from infra.rest.access_keys import SCOPES, add_key
from infra.rest.problems import Problem
from infra.settings import Settings

BROWSER = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0", "accept-language": "en"}
OURS = [
    {},
    {"user-agent": "curl/8"},
    {"user-agent": "Mozilla/5.0 (Windows NT; en-US) WindowsPowerShell/5.1"},
    {**BROWSER, "sec-fetch-site": "none"},
    {**BROWSER, "sec-fetch-site": "same-origin"},
    {**BROWSER, "sec-fetch-site": "same-origin", "origin": "http://test:8080"},
    {**BROWSER, "origin": "http://test:8080"},
]
FOREIGN = [
    {**BROWSER, "sec-fetch-site": "cross-site"},
    {**BROWSER, "sec-fetch-site": "same-site"},
    {**BROWSER, "sec-fetch-site": "anything"},
    {**BROWSER, "origin": "https://evil.example"},
    {**BROWSER, "origin": "http://test:9999"},
    {**BROWSER, "origin": "null"},
    {**BROWSER, "sec-fetch-site": "same-origin", "origin": "https://evil.example"},
]
SILENT = BROWSER
"""What a browser sends with a GET where there is neither encryption nor loopback."""


class Door:
    """The access check of a home with one key."""

    def __init__(self, home: Path, *, is_required: bool = True) -> None:
        secret = add_key(home, "site", SCOPES)
        basic = base64.b64encode(f"site:{secret}".encode()).decode()
        self.authorization = {"basic": f"Basic {basic}", "bearer": f"Bearer {secret}"}
        self._access = Access(Settings(home=home, access_required=is_required))

    def status(self, kind: str, scopes: tuple[str, ...], headers: dict[str, str], by: str = "basic") -> int:
        """200, or the status of the refusal."""
        given = {"host": "test:8080", **headers, **({"authorization": self.authorization[by]} if by else {})}
        raw = [(name.encode(), value.encode()) for name, value in given.items()]
        what = {"type": "websocket"} if kind == "websocket" else {"type": "http", "method": kind}
        try:
            self._access.check(HTTPConnection({**what, "path": "/", "query_string": b"", "headers": raw}), *scopes)
        except Problem as problem:
            return problem.status
        return 200


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


CHANGES = [
    ("websocket", ("query", "admin")),
    ("POST", ("produce",)),
    ("DELETE", ("admin",)),
    ("POST", ("query", "admin")),
    ("GET", ("produce",)),
    ("GET", ("consume",)),
]


@pytest.mark.parametrize(("kind", "scopes"), CHANGES)
def test_only_our_own_pages_and_programs_change_something_with_what_a_browser_remembers(
    door: Door, kind: str, scopes: tuple[str, ...]
) -> None:
    assert {door.status(kind, scopes, headers) for headers in OURS} == {200}
    assert {door.status(kind, scopes, headers) for headers in FOREIGN} == {403}


@pytest.mark.parametrize(("kind", "scopes"), CHANGES)
def test_who_sends_the_secret_itself_may_come_from_anywhere(door: Door, kind: str, scopes: tuple[str, ...]) -> None:
    assert {door.status(kind, scopes, headers, "bearer") for headers in [*OURS, *FOREIGN, SILENT]} == {200}


def test_a_browser_that_does_not_say_which_page_asks_stores_nothing_by_get(door: Door) -> None:
    assert door.status("GET", ("produce",), SILENT) == 403
    assert door.status("GET", ("consume",), SILENT) == 403
    assert door.status("GET", ("query", "admin"), SILENT) == 200


@pytest.mark.parametrize("scopes", [("query", "admin"), ("metrics",), ("produce", "consume", "admin")])
def test_reading_is_left_to_the_browser_which_shows_foreign_pages_no_answer(
    door: Door, scopes: tuple[str, ...]
) -> None:
    assert {door.status("GET", scopes, headers) for headers in [*OURS, *FOREIGN, SILENT]} == {200}


def test_without_a_key_the_answer_is_the_same_from_everywhere(door: Door) -> None:
    assert {door.status("GET", ("produce",), headers, "") for headers in [*OURS, *FOREIGN, SILENT]} == {401}


def test_where_no_key_is_needed_only_websockets_are_kept_from_foreign_pages(tmp_path: Path) -> None:
    door = Door(tmp_path, is_required=False)
    assert {door.status("websocket", ("query",), headers, "") for headers in FOREIGN} == {403}
    assert {door.status("websocket", ("query",), headers, "") for headers in OURS} == {200}
    assert {door.status("POST", ("produce",), headers, "") for headers in FOREIGN} == {200}
