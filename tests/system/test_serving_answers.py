"""The serving layer over real indexes and a real Redis, without Kafka and Spark: what goes out is what was answered."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from batch_layer.failures import note_failure
from hand_off import publish_log
from infra.rest.access_keys import add_key
from serving_layer.app import create_app
from serving_layer.query.model import Query
from serving_layer.rest import formats
from tests.conftest import wait_until
from tests.process.serving_server import running
from tests.process.test_push import Reader, hang_up
from tests.system.speed_source import RedisServer
from tests.system.test_query_engine import END, EVENTS, HALF, QUARTER, WHOLE, Shop
from tests.unit.test_serving_openapi import mistakes

ASKED: list[list[tuple[str, str]]] = [
    [],
    [("by", "item,size"), ("order", "-orders"), ("limit", "5")],
    [("by", "item"), ("grain", "month"), ("quantiles", "0.1,0.999")],
    [("grain", "day"), ("window", "7d"), ("answers", "orders,users,ms")],
    [("item", "a"), ("by", "size"), ("explain", "true")],
    [("grain", "week"), ("compare", "previous_period"), ("fill", "zero")],
    [("from", "2020-01-01"), ("to", "2020-01-05"), ("by", "item")],
    [("having", "orders > 1 and share is not null"), ("by", "item"), ("answers", "often,spread,few,last,latest,spent")],
]


class Front(NamedTuple):
    """A shop, and what asks it by REST."""

    shop: Shop
    client: httpx.Client
    described: dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    found = RedisServer(tmp_path_factory.mktemp("redis"))
    found.start()
    yield found
    found.kill()


@pytest.fixture
def front(tmp_path: Path, server: RedisServer) -> Iterator[Front]:
    shop = Shop(tmp_path / "home", server)
    secret = add_key(tmp_path / "home", "admin", ["query"])
    app = create_app(shop.place.settings, shop.place.declarations, shop.engine)
    with (
        running(app) as (address, _stop),
        httpx.Client(base_url=address, auth=("admin", secret), timeout=30) as client,
    ):
        yield Front(shop, client, client.get("/openapi.json").json())


def given(more: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [*(each for each in WHOLE if each[0] not in dict(more)), *more]


def ask(front: Front, more: list[tuple[str, str]], view: str = "sales", **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return front.client.get(f"/views/{view}/query", params=given(more), headers=names)


def moments(shop: Shop) -> Iterator[str]:
    """States of a source, one after another."""
    yield "nothing yet"
    shop.writer.apply(EVENTS, QUARTER)
    yield "speed alone"
    shop.run(1)
    yield "batch alone"
    shop.writer.apply(EVENTS, HALF)
    yield "both"
    shop.run(2, base=1)
    shop.writer.apply(EVENTS, END)
    yield "both, of a run that went on"


def test_answers_by_rest_are_those_of_answering_and_what_the_description_says(front: Front) -> None:
    for moment in moments(front.shop):
        for more in ASKED:
            answer = ask(front, more)
            assert answer.status_code == 200, answer.text
            expected = json.loads(formats.to_json(front.shop.query(*more)))
            found = answer.json()
            assert without_lag(found) == without_lag(expected), (moment, more)
            assert found["meta"]["degraded"] is False
            schema = {"$ref": "#/components/schemas/sales_answer"}
            assert [*mistakes(found, schema, document=front.described)] == [], (moment, more)
        assert ask(front, [("by", "nothing")]).status_code == 422


def without_lag(document: dict[str, Any]) -> dict[str, Any]:
    if document["meta"]["speed"] is not None:
        document["meta"]["speed"].update(lag_s=None, lag_events=None)
    return document


def test_etag_is_known_before_the_answer_is_made(front: Front, server: RedisServer) -> None:
    shop = front.shop
    seen: dict[str, tuple[str, list[Any]]] = {}
    for moment in moments(shop):
        for more in ASKED:
            question = shop.question(*more)
            answer = shop.engine.execute(question)
            assert shop.engine.etag(question) == answer.meta.etag, (moment, more)
            known = seen.setdefault(answer.meta.etag, (moment, answer.rows))
            assert known == (moment, answer.rows), "one tag, two answers"
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        question = shop.question()
        wait_until("Redis to be away", lambda: shop.engine.execute(question).meta.degraded)
        assert shop.engine.etag(question) == shop.engine.execute(question).meta.etag
        assert shop.engine.execute(question).meta.etag not in seen
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_answer_that_did_not_change_is_not_made_again(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Query] = []
    real = front.shop.engine.execute
    monkeypatch.setattr(front.shop.engine, "execute", lambda question: made.append(question) or real(question))
    front.shop.writer.apply(EVENTS, HALF)
    etag = ask(front, []).headers["etag"]
    assert ask(front, [], If_None_Match=etag).status_code == 304
    assert len(made) == 1
    front.shop.writer.apply(EVENTS, END)
    assert ask(front, [], If_None_Match=etag).status_code == 200


def test_pages_follow_each_other_to_the_end(front: Front) -> None:
    front.shop.writer.apply(EVENTS, HALF)
    front.shop.run(1)
    whole = ask(front, [("by", "item,size"), ("grain", "day"), ("limit", "10000")]).json()["rows"]
    pages, cursor = [], ""
    while cursor is not None:
        page = ask(front, [("by", "item,size"), ("grain", "day"), ("limit", "7"), ("cursor", cursor)]).json()
        pages += page["rows"]
        cursor = page["next"]
    assert pages == whole
    assert len(whole) > 7


def test_live_feed_tells_of_what_was_applied_and_published(front: Front) -> None:
    parameters = [*given([("answers", "orders")]), ("every", "200ms")]
    with front.client.stream("GET", "/views/sales/live", params=parameters) as stream:
        reader = Reader(stream)
        assert reader.next("answer").data["rows"] == []
        front.shop.writer.apply(EVENTS, HALF)
        assert reader.next("answer").data["meta"]["cut"] == {str(p): o for p, o in HALF.items()}
        front.shop.run(1)
        assert reader.next("answer").data["meta"]["batch"]["run"] == 1
        hang_up(stream)


def test_views_say_what_they_are_and_how_fresh(front: Front) -> None:
    before = front.client.get("/views/sales").json()
    assert (before["freshness"]["run"], before["groups"], before["version"]) == (0, 0, before["declared"])
    front.shop.writer.apply(EVENTS, HALF)
    front.shop.run(1)
    front.shop.writer.apply(EVENTS, END)
    details = front.client.get("/views/sales").json()
    schema = {"$ref": "#/components/schemas/ViewDetails"}
    assert [*mistakes(details, schema, document=front.described)] == []
    assert (details["freshness"]["run"], details["freshness"]["degraded"]) == (1, False)
    assert details["freshness"]["cut"] == {str(p): o for p, o in HALF.items()}
    assert details["freshness"]["applied"] == {str(p): o for p, o in END.items()}
    assert details["groups"] > 0
    assert details["keys"] == {"item": "string", "size": "bigint"}
    listed = front.client.get("/views").json()["views"]
    assert [view["name"] for view in listed] == ["sales", "totals"]
    assert {view["freshness"]["run"] for view in listed} == {1}


def test_rollback_that_makes_answers_stand_still_is_said(front: Front) -> None:
    """By /ready, /views and /sources, which also say how many runs failed; the command asks Redis the same."""
    shop, ready = front.shop, {"status": "ready", "batch": "readable", "speed": "readable"}
    for run, cut in ((1, QUARTER), (2, HALF)):
        shop.writer.apply(EVENTS, cut)
        shop.run(run)
    publish_log.serve(shop.place.folder, 1)
    shop.writer.apply(EVENTS, END)
    assert front.client.get("/ready").json() == ready
    shop.retire()
    frozen = "stand still for some sources, because of a rollback"
    assert front.client.get("/ready").json() == {**ready, "speed": "degraded", "answers": frozen}
    note_failure(shop.place.folder, "The disk is full.", 5.0)
    source = front.client.get(f"/sources/{shop.place.folder.source}").json()
    schema = {"$ref": "#/components/schemas/SourceDetails"}
    assert [*mistakes(source, schema, document=front.described)] == []
    assert (source["pinned"], source["freshness"]["frozen"], source["freshness"]["degraded"]) == (1, True, True)
    assert source["failures"] == {"count": 1, "since": "1970-01-01T00:00:05Z", "at": "1970-01-01T00:00:05Z"}
    publish_log.serve(shop.place.folder, None)
    assert front.client.get("/ready").json() == ready


def test_views_are_listed_where_the_files_of_one_are_damaged(front: Front) -> None:
    front.shop.writer.apply(EVENTS, HALF)
    front.shop.run(1)
    indexes = front.shop.place.folder.indexes
    moved = [file.rename(file.with_suffix(".away")) for file in indexes.rglob("*.mdb")]
    assert moved
    listed = front.client.get("/views")
    assert listed.status_code == 200, listed.text
    assert [view["data"] for view in listed.json()["views"]] == [None, None]


def test_data_range_of_a_view_holds_all_of_its_events(front: Front) -> None:
    """At any moment, and no wider than whole days: the dashboard offers it where a chosen range has no events."""
    assert front.client.get("/views/sales").json()["data"] is None, "no events, no range"
    for moment in moments(front.shop):
        buckets = [row["bucket"] for row in ask(front, [("grain", "hour"), ("limit", "10000")]).json()["rows"]]
        data = front.client.get("/views/sales").json()["data"]
        if not buckets:
            assert data is None, moment
            continue
        schema = {"$ref": "#/components/schemas/ViewDetails"}
        assert [*mistakes(front.client.get("/views/sales").json(), schema, document=front.described)] == []
        begin, end = datetime.fromisoformat(data["from"]), datetime.fromisoformat(data["to"])
        first, last = datetime.fromisoformat(min(buckets)), datetime.fromisoformat(max(buckets))
        assert first - timedelta(days=1) < begin <= first, moment
        assert last < end <= last + timedelta(days=1), moment


def test_a_question_that_is_refused_fails_no_other_where_the_client_wants_so(front: Front) -> None:
    shop = front.shop
    shop.writer.apply(EVENTS, HALF)
    shop.engine.limits = replace(shop.engine.limits, max_groups=60)  # what grouping by hour exceeds
    whole = dict(WHOLE)
    questions: list[dict[str, Any]] = [
        {"view": "sales", **whole},
        {"view": "sales", **whole, "by": ["item", "size"], "grain": "hour"},
        {"view": "sales", **whole, "by": ["nothing"]},
        {"view": "totals", **whole},
    ]
    together = front.client.post("/query", json={"questions": questions})
    assert (together.status_code, together.json()["question"]) == (422, 2)
    for is_partial in (False, None):
        body = {"questions": questions[:2], **({} if is_partial is None else {"partial": is_partial})}
        refused = front.client.post("/query", json=body)
        assert (refused.status_code, refused.json()["limit"]) == (422, "serving_max_groups")
    answer = front.client.post("/query", json={"questions": questions, "partial": True})
    assert answer.status_code == 200, answer.text
    first, large, wrong, last = answer.json()["answers"]
    assert [each["problem"]["question"] for each in (large, wrong)] == [1, 2]
    assert [each["problem"]["status"] for each in (large, wrong)] == [422, 422]
    assert large["problem"]["limit"] == "serving_max_groups"
    assert wrong["problem"]["parameter"] == "by"
    assert first["meta"]["cut"] == last["meta"]["cut"] == {str(p): o for p, o in HALF.items()}
    assert without_lag(first) == without_lag(json.loads(formats.to_json(shop.query())))
    assert last["rows"]
    assert front.client.post("/query", json={"questions": questions, "partial": "yes"}).status_code == 422
    hidden = front.client.post("/query", json={"questions": [*questions, {"view": "none"}], "partial": True})
    assert hidden.status_code == 404
