"""The dashboard without a browser: what is served, by which rules a browser shows it, and who is signed in."""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import HTTPConnection

from batch_layer.lease import lease
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.manifests import DataFile, Manifest, Phase, ViewData, write_manifest
from hand_off.publish_log import Entry
from infra.rest.access_keys import AccessKeys, add_key, read_keys, remove_key
from infra.rest.sessions import Sessions
from serving_layer.dashboard.files import STATIC, read_files
from tests.process.serving_server import Served, serving

HITS = "/views/page_hits/query"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("dashboard") / "home") as running:
        yield running


@pytest.fixture
def browser(served: Served) -> Iterator[httpx.Client]:
    """What a page of the server sends: cookies, and where it comes from."""
    headers = {"Origin": served.address, "Sec-Fetch-Site": "same-origin", "X-Requested-With": "dashboard"}
    with httpx.Client(base_url=served.address, headers=headers, timeout=30) as client:
        yield client


def signed_in(served: Served, browser: httpx.Client, name: str, **of_key: Any) -> httpx.Response:
    secret = add_key(served.home, name, of_key.get("scopes", ["query"]), of_key.get("views"))
    return browser.post("/session", json={"name": name, "secret": secret})


# ---- files ---------------------------------------------------------------------


def test_page_and_everything_it_loads_is_served_without_a_key(served: Served) -> None:
    page = httpx.get(served.address)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    named = re.findall(r'(?:src|href)="([^"#][^"]*)"', page.text)
    assert len(named) > 5
    for address in named:
        assert address.startswith("/dashboard/"), f"{address} is not ours"
        assert httpx.get(served.address + address).status_code == 200, address


def test_every_module_that_another_imports_is_there_and_is_fetched_with_the_page() -> None:
    """Without the list in the page, a browser would find them one after another."""
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    listed = set(re.findall(r'rel="modulepreload" href="/dashboard/([^"]+)"', page))
    for path in STATIC.rglob("*.js"):
        for name in re.findall(r'^import .*?from "([^"]+)";', path.read_text(encoding="utf-8"), re.M | re.S):
            found = (path.parent / name).resolve()
            assert found.is_file(), f"{path.name} imports {name}"
            assert found.relative_to(STATIC).as_posix() in listed


@pytest.mark.parametrize("path", ["/", "/dashboard/style.css", "/dashboard/main.js"])
def test_policy_lets_nothing_in_from_elsewhere_and_no_text_become_markup(served: Served, path: str) -> None:
    headers = httpx.get(served.address + path).headers
    policy = headers["content-security-policy"]
    for rule in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'",
                 "base-uri 'none'", "require-trusted-types-for 'script'"):  # fmt: skip
        assert rule in policy.split("; ")
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_no_file_has_what_the_policy_forbids_or_an_address_elsewhere() -> None:
    for path in STATIC.rglob("*.*"):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        for wrong in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function",
                      " style=", " onclick=", "http://", "https://", "@import"):  # fmt: skip
            assert wrong not in text, f"{path.name} has {wrong}"


def test_files_are_compressed_asked_about_by_their_tag_and_small(served: Served) -> None:
    packed = httpx.get(f"{served.address}/dashboard/main.js")
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == (STATIC / "main.js").read_bytes()
    plain = httpx.get(f"{served.address}/dashboard/main.js", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.headers["etag"] != packed.headers["etag"]
    again = httpx.get(f"{served.address}/dashboard/main.js", headers={"If-None-Match": packed.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert sum(len(file.packed) for file in read_files().values()) < 200_000


@pytest.mark.parametrize("path", ["nothing.js", "../files.py", "%2e%2e/files.py", "..%2ffiles.py", "/etc/passwd"])
def test_nothing_else_can_be_read_by_its_path(served: Served, path: str) -> None:
    assert httpx.get(f"{served.address}/dashboard/{path}").status_code == 404


# ---- signing in ----------------------------------------------------------------


def test_who_signed_in_may_ask_without_sending_the_secret_again(served: Served, browser: httpx.Client) -> None:
    assert browser.get(HITS).status_code == 401
    begun = signed_in(served, browser, "ann", views=["page_hits"])
    assert (begun.status_code, begun.json()["key"], begun.json()["views"]) == (200, "ann", ["page_hits"])
    (cookie,) = begun.headers.get_list("set-cookie")
    assert re.search(r"HttpOnly; Max-Age=43200; Path=/; SameSite=strict$", cookie)
    assert "Secure" not in cookie
    assert browser.get(HITS).status_code == 200
    assert browser.post("/query", json={"view": "page_hits"}).status_code == 200
    assert browser.get("/views/page_latency/query").status_code == 403, "a session may no more than its key"
    assert browser.get("/session").json()["key"] == "ann"


def test_cookie_is_for_encrypted_connections_alone_where_there_is_one(served: Served, browser: httpx.Client) -> None:
    browser.headers["X-Forwarded-Proto"] = "https"
    assert "; Secure" in signed_in(served, browser, "secure").headers["set-cookie"]


def test_wrong_secret_is_refused_in_words_and_opens_no_window_of_the_browsers(
    served: Served, browser: httpx.Client
) -> None:
    add_key(served.home, "bea", ["query"])
    refused = browser.post("/session", json={"name": "bea", "secret": "wrong"})
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:tidemark:problem:wrong-key")
    assert "set-cookie" not in refused.headers
    assert browser.get(HITS).headers["www-authenticate"] == 'Session realm="tidemark"'
    assert httpx.get(served.address + HITS).headers["www-authenticate"].startswith("Basic")


def test_key_that_may_not_ask_cannot_sign_in(served: Served, browser: httpx.Client) -> None:
    refused = signed_in(served, browser, "producer", scopes=["produce"])
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:tidemark:problem:missing-scope")


@pytest.mark.parametrize(
    ("body", "status"), [(b"", 400), (b"[]", 422), (b'{"name": "ann"}', 422), (b'{"name": 1, "secret": 2}', 422)]
)
def test_body_that_is_no_key_is_refused(browser: httpx.Client, body: bytes, status: int) -> None:
    assert browser.post("/session", content=body).status_code == status


def test_nothing_is_unpacked_or_read_at_length_before_a_key_was_checked(browser: httpx.Client) -> None:
    packed = browser.post("/session", content=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"})
    assert (packed.status_code, packed.headers["accept-encoding"]) == (415, "identity")
    assert browser.post("/session", content=b" " * 5000).status_code == 413


def test_session_ends_when_it_is_signed_out_of(served: Served, browser: httpx.Client) -> None:
    signed_in(served, browser, "cat")
    kept = dict(browser.cookies)
    assert browser.delete("/session").status_code == 204
    assert not browser.cookies
    browser.cookies.update(kept)  # somebody copied it
    assert browser.get(HITS).status_code == 401


def test_session_ends_with_its_key_and_does_not_come_back_with_another_of_that_name(
    served: Served, browser: httpx.Client
) -> None:
    signed_in(served, browser, "dan")
    remove_key(served.home, "dan")
    assert browser.get(HITS).status_code == 401
    add_key(served.home, "dan", ["query"])
    assert browser.get(HITS).status_code == 401


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},  # another port of this machine
    ],
)
def test_other_pages_cannot_use_the_cookie_nor_sign_anybody_in_or_out(
    served: Served, browser: httpx.Client, elsewhere: dict[str, str]
) -> None:
    name = f"eve{abs(hash(str(elsewhere)))}"
    signed_in(served, browser, name)
    assert browser.get(HITS, headers=elsewhere).status_code == 401
    assert browser.post("/query", json={"view": "page_hits"}, headers=elsewhere).status_code == 401
    assert browser.post("/session", json={"name": "", "secret": ""}, headers=elsewhere).status_code == 403
    assert browser.delete("/session", headers=elsewhere).status_code == 403
    assert browser.get(HITS).status_code == 200


def test_what_changes_something_needs_an_origin_where_a_cookie_proves_the_key(
    served: Served, browser: httpx.Client
) -> None:
    signed_in(served, browser, "fay")
    del browser.headers["Origin"], browser.headers["Sec-Fetch-Site"]
    assert browser.get(HITS).status_code == 200, "a browser sends none when it only reads"
    assert browser.post("/query", json={"view": "page_hits"}).status_code == 401


def test_where_no_key_is_needed_nobody_has_to_sign_in(tmp_path: Path) -> None:
    with serving(tmp_path / "home", access_required=False) as open_to_all:
        answer = httpx.get(f"{open_to_all.address}/session")
        nobody = {"key": None, "views": None, "reads_schemas": True, "ends": None}
        assert (answer.status_code, answer.json()) == (200, nobody)


def test_sessions_are_bounded_and_the_oldest_ends_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_key(tmp_path, "ann", ["query"])
    key, keys = read_keys(tmp_path)["ann"], AccessKeys(tmp_path)
    sessions = Sessions(tmp_path, 3600, most=3)
    tokens = [sessions.begin(key)[0] for _ in range(5)]
    assert len(list((tmp_path / "sessions").iterdir())) == 3
    assert [is_valid(sessions, token, keys) for token in tokens] == [False, False, True, True, True]
    later = time.time() + 3601
    monkeypatch.setattr(time, "time", lambda: later)
    sessions.begin(key)
    assert len(list((tmp_path / "sessions").iterdir())) == 1, "those that ended are forgotten"


def is_valid(sessions: Sessions, token: str, keys: AccessKeys) -> bool:
    cookie = (b"cookie", f"{sessions.cookie}={token}".encode())
    asking = HTTPConnection({"type": "http", "method": "GET", "headers": [cookie]})
    return sessions.find(asking, keys) is not None


def test_secret_and_token_are_written_nowhere(served: Served, browser: httpx.Client) -> None:
    signed_in(served, browser, "gil")
    (token,) = browser.cookies.values()
    for path in (served.home / "sessions").iterdir():
        assert token not in path.name + path.read_text()
        assert path.stat().st_mode & 0o077 == 0


# ---- sources -------------------------------------------------------------------


def test_sources_are_told_to_those_who_may_see_a_view_of_them(served: Served) -> None:
    with httpx.Client(base_url=served.address, auth=served.key("some", ["query"], ["page_hits"])) as client:
        assert [each["name"] for each in client.get("/sources").json()["sources"]] == ["web"]
        told = client.get("/sources/web").json()
        assert (told["views"], told["runs"], told["working"]) == (["page_hits"], [], None)
        refused = client.get("/sources/shop")
        assert (refused.status_code, refused.json()["type"]) == (403, "urn:tidemark:problem:not-allowed")
    with httpx.Client(base_url=served.address, auth=served.key("none", ["query"], [])) as client:
        assert client.get("/sources").json()["sources"] == []
        assert client.get("/sources/web").status_code == 403
    unlimited = served.client.get("/sources/shop")
    assert (unlimited.status_code, unlimited.json()["type"]) == (404, "urn:tidemark:problem:unknown-source")


def test_schema_of_a_source_names_the_views_that_use_a_field_and_that_the_key_may_see(served: Served) -> None:
    with httpx.Client(base_url=served.address, auth=served.key("few", ["query"], ["page_hits"])) as client:
        schema = client.get("/sources/web").json()["schema"]
    fields = {each["path"]: each for each in schema["fields"]}
    assert (schema["topic"], schema["format"], schema["id_field"], schema["key_field"]) == (
        "web",
        "json",
        "event_id",
        "event_id",
    )
    assert fields["event_id"]["type"] == "string"
    assert (schema["version"], schema["subjects"], schema["pending"], schema["writer_schemas"]) == (1, [], None, [])
    everything = served.client.get("/sources/web").json()["schema"]
    users = {each["path"]: each["views"] for each in everything["fields"]}
    assert fields["properties.url"]["views"] == ["page_hits"]
    assert {"page_hits"} < set(users["properties.url"]) < set(users["properties"])


def test_schemas_are_refused_without_their_scope_and_a_kafka_that_is_away_keeps_no_query_waiting(
    served: Served, browser: httpx.Client
) -> None:
    with httpx.Client(base_url=served.address, auth=served.key("no-schemas", ["query"])) as client:
        for path in ("/schemas", "/schemas/web-value"):
            assert (client.get(path).status_code, client.get(path).json()["type"][-13:]) == (403, "missing-scope")
    assert signed_in(served, browser, "of-schemas", scopes=["query", "schema:read"]).json()["reads_schemas"] is True
    assert signed_in(served, browser, "of-views").json()["reads_schemas"] is False
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.get, f"{served.address}/schemas", auth=served.client.auth, timeout=60)
        assert served.client.get("/views").status_code == 200
        assert asked.result().status_code == 503
        assert asked.result().json()["type"].startswith("urn:tidemark:problem:")


def test_schemas_of_another_registry_are_asked_for_there(tmp_path: Path) -> None:
    with serving(tmp_path / "home", schema_registry_url="http://127.0.0.1:1") as other:
        refused = other.client.get("/schemas")
        assert (refused.status_code, refused.json()["type"]) == (404, "urn:tidemark:problem:registry-unreadable")
        assert "127.0.0.1" not in refused.text


def test_run_that_is_under_way_is_told_and_not_disturbed(served: Served) -> None:
    folder = BatchFolder(served.home / "batch" / "web")
    with lease(folder, "batch run of web"):
        told = served.client.get("/sources/web").json()["working"]
        assert told["doing"] == "batch run of web"
        served.client.get("/sources").raise_for_status()
    assert served.client.get("/sources/web").json()["working"] is None
    with lease(folder, "another one"):
        pass


def test_published_runs_are_told_with_their_durations_and_sizes(served: Served) -> None:
    folder = BatchFolder(served.home / "batch" / "web")
    files = (DataFile("2026-03-01", "a.parquet", 7, 1234),)
    views = tuple(ViewData(name, "0" * 64, "full", files, 7, {}, (), 1.5) for name in ("page_hits", "signups"))
    timeline = (Phase("cut", 0.4, 0), Phase("page_hits: compute", 1.25, 1), Phase("signups: compute", 1.5, 2))
    write_manifest(folder, Manifest(1, "web", {0: 40}, None, 100.0, 103.5, 39, 1, 2, views, (), timeline=timeline))
    publish_log.append(folder, Entry(1, {0: 40}, {"page_hits": "0" * 64}, 104.0))
    publish_log.append(folder, Entry(2, {0: 50}, {"page_hits": "0" * 64}, 105.0))
    with httpx.Client(base_url=served.address, auth=served.key("runs", ["query"], ["page_hits"])) as client:
        pruned, run = client.get("/sources/web").json()["runs"]
    assert (pruned["run"], pruned["cut"], pruned["seconds"], pruned["views"]) == (2, {"0": 50}, None, None)
    assert pruned["timeline"] is None
    assert run == {
        "run": 1, "cut": {"0": 40}, "published": "1970-01-01T00:01:44Z", "kind": "full", "seconds": 3.5, "events": 39,
        "duplicates": 1, "invalid": 2, "rows": 14, "bytes": 2468,
        "views": [{"name": "page_hits", "kind": "full", "rows": 7, "bytes": 1234, "seconds": 1.5}],
        "timeline": [
            {"name": "cut", "seconds": 0.4, "jobs": 0}, {"name": "page_hits: compute", "seconds": 1.25, "jobs": 1},
        ],
    }  # fmt: skip
