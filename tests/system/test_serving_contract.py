"""The serving layer does what its OpenAPI says, whatever is sent: with a real Redis, a run and a port of its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy
from schemathesis import APIOperation, Case, CheckContext, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from hand_off.speed_views import SpeedViews
from infra.rest.access_keys import add_key
from infra.settings import load_settings
from infra.stack.ports import LOOPBACK
from serving_layer.app import create_app
from serving_layer.query.limits import query_limits
from serving_layer.rest.openapi.document import describe
from tests.process.serving_server import running
from tests.serving_data import VIEWS, Place, Writer, end_of, events
from tests.system.redis_server import redis_server

EVENTS = events(400, 7)
END = end_of(EVENTS)
HALF = {partition: offset // 2 for partition, offset in END.items()}
LIMITS = {"serving_max_wait_s": 0.1, "serving_max_rows": 50, "serving_live_subscribers": 5}
TIMEOUT_S = 10
RIGHT = {
    "from": ["2025-12-28", "2026-01-15T06:00:00+02:00", "1767225600000"],
    "to": ["2026-02-01", "2026-03-10T00:00Z"],
    "grain": ["all", "day", "week", "month"],
    "tz": ["UTC", "Europe/Berlin"],
    "having": ["orders > 1"],
    "window": ["7d"],
    "min_cut": ["0:1"],
    "wait": ["0s"],
}
"""Texts that mean something. At random there would be few."""
NEVER = ("cursor", "max_staleness", "every")
"""Parameters that seldom fit."""
NOT_CHECKED = [
    checks.positive_data_acceptance,  # a text that is described as one need not be a time, a zone or a cursor
    not_a_server_error,  # some are excused, see below
]
OF_STREAMS = [checks.response_schema_conformance]
"""OpenAPI 3.1 describes a stream as one text, where this check would have a schema of each event. We look at them."""


def described() -> Any:
    """The description that is served, which requests are made from."""
    document = describe(sorted(VIEWS, key=lambda view: view.name), query_limits(load_settings(**LIMITS)))
    config = schemathesis.Config.from_dict({"max-stream-events": 1})
    return schemathesis.openapi.from_dict(document, config=config)


DESCRIBED = described()
OPERATIONS = [found.ok() for found in DESCRIBED.get_all_operations()]


def of(*endings: str) -> Any:
    """A test of each operation whose path ends so."""
    chosen = [operation for operation in OPERATIONS if operation.path.endswith(endings)]
    return pytest.mark.parametrize("operation", chosen, ids=lambda operation: operation.label)


def each(examples: int, cases: SearchStrategy[Case], check: Callable[[Case], object]) -> None:
    """Check so many requests, the same ones every time: what is found is found again."""

    @given(cases)
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    def check_one(case: Case) -> None:
        check(case)

    check_one()


# ---- what is served ------------------------------------------------------------


@dataclass
class Served:
    """A serving layer on a port, and the kinds of problems that it may answer 503 with."""

    address: str
    secret: str
    excused: frozenset[str]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secret}"}

    def check(self, case: Case) -> Response:
        """Send a request with our key: what comes back is as described."""
        return case.call_and_validate(
            base_url=self.address,
            headers=self.headers,
            timeout=TIMEOUT_S,
            additional_checks=[is_problem_document, is_event_as_described, self.is_no_failure],
            excluded_checks=NOT_CHECKED + (OF_STREAMS if case.path.endswith("/live") else []),
        )

    def is_no_failure(self, _context: CheckContext, answer: Response, _case: Case) -> None:
        """No 5xx but a 503 that says what is missing."""
        assert answer.status_code < 500 or (
            answer.status_code == 503 and answer.json()["type"].rpartition(":")[2] in self.excused
        ), answer.text


def is_problem_document(_context: CheckContext, answer: Response, _case: Case) -> None:
    """Every error is one, and says what to do."""
    if answer.status_code < 400:
        return
    assert answer.headers["content-type"] == ["application/problem+json"]
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["type"].startswith("urn:tidemark:problem:")
    assert problem["title"]
    assert problem["detail"]
    assert "parameter" in problem or not problem["type"].endswith(":bad-parameter")


def is_event_as_described(_context: CheckContext, answer: Response, case: Case) -> None:
    """The first event of a live feed is an answer of its view, or a problem."""
    if answer.headers.get("content-type") != ["text/event-stream; charset=utf-8"]:
        return
    lines = answer.text.split("\n")
    (kind,) = (line.removeprefix("event: ") for line in lines if line.startswith("event: "))
    (data,) = (line.removeprefix("data: ") for line in lines if line.startswith("data: "))
    schema = {"answer": f"{case.path.split('/')[2]}_answer", "problem": "Problem"}[kind]
    document = {"$ref": f"#/components/schemas/{schema}", "components": DESCRIBED.raw_schema["components"]}
    jsonschema_rs.validator_for(document).validate(json.loads(data))


@contextmanager
def serving(folder: Path, *, is_empty: bool = False) -> Iterator[Served]:
    """With half of the events in a run and the others in Redis; or with nothing yet."""
    with redis_server(folder) as client:
        port = client.connection_pool.connection_kwargs["port"]
        place = Place(folder / "home", views=VIEWS, redis_url=f"redis://{LOOPBACK}:{port}/0")
        place.settings.home.mkdir(exist_ok=True)
        if not is_empty:
            place.begin()
            place.publish(1, HALF, EVENTS)
            Writer(SpeedViews(client, place.source.name), place).apply(EVENTS, END)
        secret = add_key(place.settings.home, "contract", ["query", "metrics"])
        with running(create_app(place.settings.model_copy(update=LIMITS), place.declarations)) as (address, _stop):
            yield Served(address, secret, frozenset({"not-computed-yet"} if is_empty else {"stale"}))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("contract")) as found:
        yield found


def make_sense(case: Case) -> Case:
    """The same with texts that mean something in the places of others."""
    chance = Random(repr((case.query, case.body)))  # noqa: S311  no secret
    view = chance.choice(VIEWS).name
    if case.path_parameters:
        case.path_parameters = {"name": view}
    if case.method == "GET":
        case.query = case.query and _sensible(case.query, chance)
    else:
        members = {"view": view, "filters": {}, **dict.fromkeys(chance.sample(sorted(RIGHT), 3))}
        case.body = {"questions": [_sensible(members, chance)] * chance.randint(1, 3)}
    return case


def _sensible(asked: dict[str, Any], chance: Random) -> dict[str, Any]:
    found = {name: value for name, value in asked.items() if name not in NEVER}
    found |= {name: chance.choice(RIGHT[name]) for name in sorted({"from", "to", *asked} & RIGHT.keys())}
    return found | ({"grain": "day"} if "window" in found else {})


# ---- what is asked -------------------------------------------------------------


def test_the_description_that_is_served_is_the_one_that_requests_are_made_from(served: Served) -> None:
    answer = httpx.get(f"{served.address}/openapi.json", headers=served.headers)
    assert answer.json() == DESCRIBED.raw_schema


@of("")
def test_what_is_at_the_edge_of_a_description_is_answered_as_described(operation: APIOperation, served: Served) -> None:
    """Least and greatest values, missing and doubled parameters, wrong types, other methods."""
    modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
    config = DESCRIBED.config.generation_for(operation=operation)
    for case in DESCRIBED.iter_coverage_cases(operation, generation_modes=modes, generation_config=config):
        served.check(case)


@of("")
def test_whatever_is_sent_is_answered_as_described(operation: APIOperation, served: Served) -> None:
    each(10, operation.as_strategy(), served.check)
    if operation.query or operation.body or operation.path_parameters:
        each(25, operation.as_strategy(GenerationMode.NEGATIVE), served.check)


@of("/query", "/live", "/views/{name}")
def test_what_makes_sense_is_answered_as_described(operation: APIOperation, served: Served) -> None:
    said: Counter[int] = Counter()
    each(30, operation.as_strategy().map(make_sense), lambda case: said.update([served.check(case).status_code]))
    assert said[200] >= said.total() / 3, f"mostly problems were looked at: {said}"


@pytest.fixture(scope="module")
def nothing_yet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("empty"), is_empty=True) as found:
        yield found


@of("/query", "/live", "/views", "/views/{name}", "/sources", "/health", "/ready", "/metrics")
def test_where_nothing_was_computed_yet_answers_say_so(operation: APIOperation, nothing_yet: Served) -> None:
    said: Counter[int] = Counter()
    cases = operation.as_strategy().map(make_sense)
    each(5, cases, lambda case: said.update([nothing_yet.check(case).status_code]))
    assert {*said} == {503 if operation.path.endswith(("/query", "/live")) else 200}
