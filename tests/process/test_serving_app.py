"""The REST surface of the serving layer: who may ask, what is refused and how, and what holds up whom."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import orjson
import pytest

from serving_layer import errors
from serving_layer.errors import ServingError
from serving_layer.rest.queries import is_known
from tests.conftest import wait_until
from tests.process.serving_server import Served, serving

HITS = "/views/page_hits/query"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "home") as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """For tests that change nothing."""
    with serving(tmp_path_factory.mktemp("shared") / "home") as running:
        yield running


def problem(answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """The problem document of an answer, which is of this kind."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    document: dict[str, Any] = answer.json()
    assert (document["status"], document["type"]) == (status, f"urn:tidemark:problem:{kind}")
    return document


# ---- answers -------------------------------------------------------------------


def test_answer_is_json_with_rows_and_what_they_are_made_of(shared: Served) -> None:
    answer = shared.client.get(HITS, params={"from": "2026-03-01", "to": "2026-03-03", "grain": "day", "by": "url"})
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert [row["bucket"] for row in body["rows"]] == ["2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z"]
    assert body["rows"][0] == {"bucket": "2026-03-01T00:00:00Z", "url": "x", "hits": 1, "visitors": 1}
    assert body["meta"]["cut"] == {"0": 17}
    assert answer.headers["cache-control"] == "private, no-cache"
    assert answer.headers["vary"] == "Accept, Authorization, Cookie"


@pytest.mark.parametrize(
    ("parameters", "accept", "media_type"),
    [
        ({"format": "csv"}, "application/json", "text/csv"),
        ({}, "text/csv", "text/csv"),
        ({}, "application/x-ndjson", "application/x-ndjson"),
        ({}, "text/html, */*;q=0.1", "application/json"),
    ],
)
def test_format_is_what_the_parameter_or_accept_asks_for(
    shared: Served, parameters: dict[str, str], accept: str, media_type: str
) -> None:
    answer = shared.client.get(HITS, params=parameters, headers={"Accept": accept})
    assert answer.headers["content-type"].startswith(media_type)
    if media_type == "text/csv":
        assert orjson.loads(answer.headers["tidemark-meta"])["view"] == "page_hits"


def test_format_that_there_is_not_is_refused(shared: Served) -> None:
    problem(shared.client.get(HITS, headers={"Accept": "image/png"}), 406, "not-acceptable")
    problem(shared.client.get(HITS, params={"format": "xml"}), 422, "bad-parameter")


def test_answer_that_the_client_has_is_not_sent_again(served: Served) -> None:
    fixed = {"from": "2026-03-01", "to": "2026-03-02"}
    first = served.client.get(HITS, params=fixed)
    etag = first.headers["etag"]
    assert etag.startswith('W/"')
    again = served.client.get(HITS, params=fixed, headers={"If-None-Match": f'"other", {etag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert again.headers["vary"] == "Accept, Authorization, Cookie"
    other_format = served.client.get(HITS, params={**fixed, "format": "csv"}, headers={"If-None-Match": etag})
    assert other_format.status_code == 200
    served.engine.number = 2
    changed = served.client.get(HITS, params=fixed, headers={"If-None-Match": etag})
    assert (changed.status_code, changed.json()["rows"][0]["hits"]) == (200, 2)


@pytest.mark.parametrize(
    ("given", "is_same"),
    [(None, False), ("", False), ('W/"a"', True), ('"a"', True), ('"b",W/"a"', True), ("*", True), ('W/"b"', False)],
)
def test_etags_are_compared_weakly(given: str | None, is_same: bool) -> None:
    assert is_known('W/"a"', given) is is_same


# ---- what is refused -----------------------------------------------------------


def test_unknown_parameter_is_refused_and_named(shared: Served) -> None:
    found = problem(shared.client.get(HITS, params={"urll": "/"}), 422, "bad-parameter")
    assert found["parameter"] == "urll"
    assert "Did you mean 'url'?" in found["detail"]


def test_query_string_that_is_not_utf8_is_refused(shared: Served) -> None:
    problem(shared.client.get(f"{HITS}?url=%ff"), 400, "invalid-parameter")


KINDS = sorted(
    {each for top in ServingError.__subclasses__() for each in (top, *top.__subclasses__())}, key=lambda kind: kind.kind
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_error_of_answering_is_a_problem_document(served: Served, kind: type[ServingError]) -> None:
    arguments: dict[type[ServingError], tuple[Any, ...]] = {
        errors.BadParameter: ("by", Decimal("1e400"), "It is wrong."),
        errors.RegistryUnreadable: ("It is wrong.", 500),
    }
    failure = served.engine.failure = kind(*arguments.get(kind, ("It is wrong.",)))
    answer = served.client.get(HITS)
    found = problem(answer, failure.status, kind.kind)
    assert found["detail"] == "It is wrong."
    assert answer.headers.get("retry-after") == ("1" if failure.status == 503 else None)
    assert "allowed" not in found, "what is not known is not told"


def test_mistake_of_ours_is_a_problem_document_without_its_secrets(served: Served) -> None:
    served.engine.failure = ZeroDivisionError("secret detail")
    answer = served.client.get(HITS)
    problem(answer, 500, "bug")
    assert "secret" not in answer.text


@pytest.mark.parametrize("path", ["/views/page_hits/query/", "/nothing", "/views/page_hits/nothing"])
def test_unknown_path_is_a_problem_document(shared: Served, path: str) -> None:
    problem(shared.client.get(path), 404, "no-such-path")


def test_wrong_method_is_a_problem_document(shared: Served) -> None:
    assert problem(shared.client.post(HITS), 405, "method-not-allowed")
    assert problem(shared.client.get("/query"), 405, "method-not-allowed")


# ---- keys ----------------------------------------------------------------------

ROUTES = [("GET", "/views"), ("GET", "/views/page_hits"), ("GET", HITS), ("POST", "/query"), ("GET", "/openapi.json"),
          ("GET", "/views/page_hits/live")]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_wants_a_key_that_may_ask(shared: Served, method: str, path: str) -> None:
    nobody = httpx.request(method, shared.address + path)
    problem(nobody, 401, "not-authorized")
    assert nobody.headers["www-authenticate"].startswith("Basic")
    key = shared.key(f"producer-{method}{path.replace('/', '.')}", ["produce", "consume", "metrics"])
    problem(httpx.request(method, shared.address + path, auth=key), 403, "missing-scope")


def test_no_key_is_taken_from_an_address(shared: Served) -> None:
    _, secret = shared.key("in-address", ["query"])
    for name in ("key", "token", "access_token", "authorization"):
        assert httpx.get(shared.address + HITS, params={name: secret}).status_code == 401


def test_view_of_others_is_like_one_that_does_not_exist(shared: Served) -> None:
    auth = shared.key("limited", ["query"], ["page_latency"])

    def ask(method: str, path: str, **options: Any) -> httpx.Response:
        return httpx.request(method, shared.address + path, auth=auth, **options)

    assert ask("GET", "/views/page_latency/query").status_code == 200
    for name in ("page_hits", "no_such_view"):
        for answer in (
            ask("GET", f"/views/{name}"),
            ask("GET", f"/views/{name}/query"),
            ask("GET", f"/views/{name}/live"),
            ask("POST", "/query", json={"view": name}),
        ):
            found = problem(answer, 403, "not-allowed")
            limits = f"The key 'limited' is limited to the view page_latency; the view {name!r} is not among them."
            assert found["detail"].startswith(limits)
    several = ask("POST", "/query", json={"questions": [{"view": "page_latency"}, {"view": "page_hits"}]})
    assert problem(several, 403, "not-allowed")["question"] == 1
    assert [view["name"] for view in ask("GET", "/views").json()["views"]] == ["page_latency"]
    described = ask("GET", "/openapi.json")
    assert "/views/page_latency/query" in described.json()["paths"]
    assert "page_hits" not in [tag["name"] for tag in described.json()["tags"]]
    assert not any("page_hits" in path for path in described.json()["paths"])


@pytest.mark.parametrize(
    ("limits", "seen"),
    [
        ({"views": ["page_*"]}, {"page_hits", "page_latency"}),
        ({"views": ["page_l?tency", "signups"]}, {"page_latency", "signups"}),
        ({"sources": ["w*"]}, None),
        ({"topics": ["web"]}, None),
        ({"sources": ["shop"]}, set()),
        ({"sources": ["shop"], "views": ["signups"]}, {"signups"}),
        ({"sources": ["web"], "views": ["nothing_*"]}, set()),
    ],
)
def test_patterns_decide_which_views_a_key_sees(
    shared: Served, limits: dict[str, list[str]], seen: set[str] | None
) -> None:
    """None: all of them. What a list leaves out is refused, and what is refused is in no list."""
    auth = shared.key(f"p{uuid4().hex}", ["query"], **limits)
    every = {view["name"] for view in shared.client.get("/views").json()["views"]}
    seen = every if seen is None else seen
    with httpx.Client(base_url=shared.address, auth=auth) as client:
        assert {view["name"] for view in client.get("/views").json()["views"]} == seen
        assert [each["name"] for each in client.get("/sources").json()["sources"]] == (["web"] if seen else [])
        watches = {watch["name"] for watch in client.get("/watches").json()["watches"]}
        assert watches == ({"server_errors"} if seen == every else set())
        alerts = client.get("/alerts").json()["alerts"]
        assert {alert["view"] for alert in alerts} <= seen
        for name in every:
            statuses = {client.get(f"/views/{name}{ending}").status_code for ending in ("", "/query")}
            assert statuses == ({200} if name in seen else {403}), name


def test_key_is_checked_before_the_body_is_looked_at(shared: Served) -> None:
    problem(httpx.post(f"{shared.address}/query", content=b"{"), 401, "not-authorized")


def test_without_required_keys_everybody_may_ask(tmp_path: Path) -> None:
    with serving(tmp_path / "home", access_required=False) as served:
        assert httpx.get(served.address + HITS).status_code == 200


def test_health_needs_no_key(shared: Served) -> None:
    assert httpx.get(f"{shared.address}/health").json() == {"status": "ok"}
    assert httpx.get(f"{shared.address}/ready").json() == {"status": "ready", "batch": "readable", "speed": "readable"}


def test_docs_lead_to_a_page_of_our_own(shared: Served) -> None:
    led = httpx.get(f"{shared.address}/docs")
    assert (led.status_code, led.headers["location"]) == (307, "/#/api")
    page = httpx.get(f"{shared.address}/docs", follow_redirects=True)
    assert (page.status_code, page.text) == (200, httpx.get(shared.address).text)
    assert 'href="#/api"' in page.text


def test_ready_says_what_answers_are_made_from_and_names_nothing(served: Served) -> None:
    served.engine.is_degraded = True
    assert httpx.get(f"{served.address}/ready").json() == {"status": "ready", "batch": "readable", "speed": "degraded"}
    served.engine.status_failure = errors.NoBatchView("The log of 'web' in /secret/place is damaged.")
    refused = httpx.get(f"{served.address}/ready")
    problem(refused, 503, "not-ready")
    assert "web" not in refused.text
    assert "secret" not in refused.text
    (fresh,) = {json.dumps(view["freshness"]) for view in served.client.get("/views").json()["views"]}
    assert json.loads(fresh)["why"] == "The log of 'web' in /secret/place is damaged."


# ---- several questions ---------------------------------------------------------


def test_one_question_by_json_is_answered_like_a_query(shared: Served) -> None:
    question = {"from": "2026-03-01", "to": "2026-03-02", "grain": "day"}
    asked = shared.client.get(HITS, params=question)
    posted = shared.client.post("/query", json={"view": "page_hits", **question})
    assert posted.json() == asked.json()
    as_csv = shared.client.post("/query", json={"view": "page_hits", **question}, headers={"Accept": "text/csv"})
    assert as_csv.headers["content-type"].startswith("text/csv")


def test_several_questions_are_answered_in_order(shared: Served) -> None:
    views = ["page_latency", "page_hits", "page_latency"]
    answer = shared.client.post("/query", json={"questions": [{"view": view} for view in views]})
    assert [each["meta"]["view"] for each in answer.json()["answers"]] == views


@pytest.mark.parametrize(
    ("body", "status", "where"),
    [
        (b"", 400, ""),
        (b"{", 400, "line 1 column 2"),
        (b'{"view": "page_hits", "view": "page_hits"}', 400, "view"),
        (b'{"view":' + b"[" * 50 + b"]" * 50 + b"}", 400, ""),
        (b"[]", 422, ""),
        (b"{}", 422, "view"),
        (b'{"view": 1}', 422, "view"),
        (b'{"questions": []}', 422, "questions"),
        (b'{"questions": {}}', 422, "questions"),
        (b'{"questions": [1]}', 422, "questions[0]"),
        (b'{"questions": [{"view": "page_hits"}], "limit": 3}', 422, "limit"),
        (b'{"questions": [' + b",".join([b'{"view": "page_hits"}'] * 21) + b"]}", 422, "questions"),
    ],
)
def test_body_that_is_no_question_is_refused(shared: Served, body: bytes, status: int, where: str) -> None:
    found = problem(shared.client.post("/query", content=body), status, "invalid-body")
    assert found["where"] == where


@pytest.mark.parametrize(("asked", "accept"), [("csv", "*/*"), ("ndjson", None), (None, "text/csv")])
def test_several_questions_are_answered_in_json_alone(shared: Served, asked: str | None, accept: str | None) -> None:
    question = {"view": "page_hits", **({"format": asked} if asked else {})}
    headers = {"Accept": accept} if accept else {}
    found = shared.client.post("/query", json={"questions": [{"view": "page_hits"}, question]}, headers=headers)
    assert problem(found, 406, "not-acceptable")["question"] == (1 if asked else 0)


def test_mistake_in_one_of_several_questions_says_in_which(shared: Served) -> None:
    questions = [{"view": "page_hits"}, {"view": "page_hits", "grain": "tomorrow"}]
    found = problem(shared.client.post("/query", json={"questions": questions}), 422, "bad-parameter")
    assert (found["question"], found["parameter"]) == (1, "grain")
    assert found["detail"].startswith("questions[1]: ")


def test_large_body_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "home", serving_max_body_kb=1) as served:
        found = problem(served.client.post("/query", content=b" " * 1001), 413, "body-too-large")
        assert "serving_max_body_kb" in found["detail"]


# ---- what holds up whom --------------------------------------------------------


def test_an_answer_that_is_too_large_is_refused_and_smaller_pages_are_not(tmp_path: Path) -> None:
    range_ = {"from": "2026-03-01", "to": "2026-03-21", "grain": "hour", "by": "url"}
    with serving(tmp_path / "home", serving_max_answer_mb=0.02) as served:
        found = problem(served.client.get(HITS, params=range_), 422, "too-large")
        assert (found["parameter"], found["limit"]) == ("limit", "serving_max_answer_mb")
        assert "0.02 MB (serving_max_answer_mb)" in found["detail"]
        assert "next" in found["detail"]
        small = {**range_, "to": "2026-03-02"}
        assert served.client.get(HITS, params=small).status_code == 200
        question = {"view": "page_hits", **small}
        found = problem(served.client.post("/query", json={"questions": [question] * 20}), 422, "too-large")
        assert found["parameter"] == "questions"
        count = found["allowed"]
        assert served.client.post("/query", json={"questions": [question] * count}).status_code == 200


def test_more_queries_than_allowed_are_sent_away_and_health_is_answered_meanwhile(tmp_path: Path) -> None:
    with serving(tmp_path / "home", serving_threads=1, serving_max_queries=2) as served, ThreadPoolExecutor() as pool:
        served.engine.may_answer.clear()
        held = [pool.submit(served.client.get, HITS) for _ in range(2)]
        threads = served.engine
        wait_until("both to be there", lambda: metrics(served)["tidemark_serving_requests_in_flight"] == 2)
        wait_until("one query to be worked on", lambda: threads.asked)
        refused = wait_until("the queue to be full", lambda: _refused(served))
        assert (problem(refused, 429, "too-many-requests"), refused.headers["retry-after"])[1] == "1"
        assert httpx.get(f"{served.address}/health").status_code == 200
        served.engine.may_answer.set()
        assert [each.result().status_code for each in held] == [200, 200]
        assert served.client.get(HITS).status_code == 200


def _refused(served: Served) -> httpx.Response | None:
    """An answer that came at once because it was refused."""
    try:
        answer = served.client.get(HITS, timeout=0.3)
    except httpx.TimeoutException:
        return None
    return answer if answer.status_code == 429 else None


def test_query_that_waits_for_fresher_views_holds_up_no_other(tmp_path: Path) -> None:
    with serving(tmp_path / "home", serving_threads=1) as served, ThreadPoolExecutor() as pool:
        real, waits = served.engine.execute, threading.Event()

        def answer(question: Any) -> Any:
            if question.freshness.min_cut is not None:
                waits.wait(30)
            return real(question)

        served.engine.execute = answer  # type: ignore[method-assign]
        waiting = pool.submit(served.client.get, HITS, params={"min_cut": "0:99"})
        posted = pool.submit(served.client.post, "/query", json={"view": "page_hits", "min_cut": {"0": 99}})
        assert served.client.get(HITS).status_code == 200
        assert not waiting.done()
        waits.set()
        assert waiting.result().status_code == posted.result().status_code == 200


def test_query_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving_layer.rest.context.GRACE_S", 0.0)
    with serving(tmp_path / "home", serving_timeout_s=1, serving_threads=1, serving_max_queries=1) as served:
        served.engine.may_answer.clear()
        found = problem(served.client.get(HITS), 503, "too-long")
        assert "serving_timeout_s" in found["detail"]
        # Its thread is still at work, and still counts.
        problem(served.client.get(HITS), 429, "too-many-requests")
        served.engine.may_answer.set()
        wait_until("the thread to be free", lambda: served.client.get(HITS).status_code == 200)


# ---- metrics -------------------------------------------------------------------


def metrics(served: Served) -> dict[str, float]:
    text = served.client.get("/metrics").raise_for_status().text
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def test_answers_are_timed_by_view_and_outcome(served: Served) -> None:
    etag = served.client.get(HITS, params={"from": "2026-03-01", "to": "2026-03-02"}).headers["etag"]
    served.client.get(HITS, params={"from": "2026-03-01", "to": "2026-03-02"}, headers={"If-None-Match": etag})
    served.client.get(HITS, params={"nothing": "1"})
    served.client.get("/views/no_such_view/query")
    served.engine.is_degraded = True
    served.client.post("/query", json={"questions": [{"view": "page_hits"}, {"view": "page_latency"}]})
    found = metrics(served)
    counts = {
        tuple(name.split('"')[1::2]): value
        for name, value in found.items()
        if name.startswith("tidemark_serving_answer_seconds_count")
    }
    assert counts == {
        ("answered", "page_hits"): 2,
        ("not-modified", "page_hits"): 1,
        ("bad-parameter", "page_hits"): 1,
        ("answered", "page_latency"): 1,
    }
    assert found['tidemark_serving_degraded_answers_total{view="page_hits"}'] == 1
    assert found["tidemark_serving_requests_in_flight"] == 0


def test_queries_in_flight_are_told(served: Served) -> None:
    with ThreadPoolExecutor() as pool:
        served.engine.may_answer.clear()
        held = [pool.submit(served.client.get, HITS) for _ in range(3)]
        wait_until("three in flight", lambda: metrics(served)["tidemark_serving_requests_in_flight"] == 3)
        served.engine.may_answer.set()
        assert {each.result().status_code for each in held} == {200}
    assert metrics(served)["tidemark_serving_requests_in_flight"] == 0
