"""OpenAPI from declarations: every view has a path, and what it describes is what there is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from infra.settings import load_settings
from infra.version import VERSION
from serving_layer.app import create_app
from serving_layer.query.limits import QueryLimits
from serving_layer.query.parse import PARAMETERS, parse_query
from serving_layer.query.parse_filters import names_of
from serving_layer.rest.openapi.document import describe
from tests.process.serving_server import serving
from views.aggregates import Count, Largest, LastK, Max, Quantiles, Sum, UniqueValues, ValueCounts
from views.declarations import load_declarations
from views.source import Source
from views.view import View

VIEWS = load_declarations(examples="all").views
SHOP = Source(
    "shop", fields="event_id string, event_time timestamp, limit string, paid boolean, day date, amount decimal(12,2)"
)
ODD = View(
    "odd", source=SHOP, keys={"limit": "limit", "paid": "paid", "day_of": "day"},
    answers={
        "previous": Count(), "amount": Sum("amount"), "last_at": Max("event_time"),
        "p": Quantiles("amount * 1D", at=0.5), "lasts": LastK("limit", k=3), "largest": Largest("day", k=2),
        "days": ValueCounts("day", at_most=31), "limits": UniqueValues("limit"),
    },
)  # fmt: skip
"""Keys that are called like parameters, an answer like a member of a row, and values of every type."""
DOCUMENT = describe([*VIEWS.values(), ODD], QueryLimits())


def found(schema: dict[str, Any], document: dict[str, Any] = DOCUMENT) -> dict[str, Any]:
    """What a reference leads to."""
    while "$ref" in schema:
        place: Any = document
        for name in schema["$ref"].removeprefix("#/").split("/"):
            place = place[name]
        schema = place
    return schema


TYPES: dict[str, Any] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict, "array": list,
    "null": type(None),
}  # fmt: skip


def mistakes(value: Any, schema: dict[str, Any], where: str = "", document: dict[str, Any] = DOCUMENT) -> Iterator[str]:
    """Where a value is not what its schema says. As much of JSON Schema as we use."""
    schema = found(schema, document)
    if "anyOf" in schema and all([*mistakes(value, each, where, document)] for each in schema["anyOf"]):
        yield f"{where}: {value!r} is none of {schema['anyOf']}"
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    is_bool = isinstance(value, bool)
    if kinds and not any(isinstance(value, TYPES[kind]) and is_bool <= (kind == "boolean") for kind in kinds):
        yield f"{where}: {value!r} is not {kinds}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is not one of {schema['enum']}"
    if isinstance(value, dict):
        yield from (f"{where}.{name} is missing" for name in schema.get("required", ()) if name not in value)
        for name, each in value.items():
            of_name = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if of_name is False:
                yield f"{where}.{name} is not described"
            elif of_name is not None:
                yield from mistakes(each, of_name, f"{where}.{name}", document)
    if isinstance(value, list):
        for place, each in enumerate(value):
            yield from mistakes(each, schema.get("items", {}), f"{where}[{place}]", document)


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            yield path, operation


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_every_reference_leads_somewhere() -> None:
    for reference in references(DOCUMENT):
        assert isinstance(found({"$ref": reference}), dict)


def test_operations_have_names_of_their_own_and_their_parameters_too() -> None:
    names = Counter(operation["operationId"] for _, operation in operations())
    assert set(names.values()) == {1}
    for path, operation in operations():
        parameters = [found(each) for each in operation["parameters"]]
        assert set(Counter((each["name"], each["in"]) for each in parameters).values()) <= {1}, path
        for each in parameters:
            assert each["description"], (path, each["name"])
            assert each.get("required") is (True if each["in"] == "path" else None)
        assert found(operation["responses"]["default"])["content"]["application/problem+json"]


def test_version_is_that_of_the_package() -> None:
    assert (DOCUMENT["openapi"], DOCUMENT["info"]["version"]) == ("3.1.0", VERSION)


def test_every_route_is_described_and_every_described_path_is_there(tmp_path: Path) -> None:
    declared = load_declarations(examples="web")
    app = create_app(load_settings(home=tmp_path), declared)
    described = describe(declared.views.values(), QueryLimits())["paths"]
    routes = {route.path.replace("{subject:path}", "{subject}") for route in app.routes if isinstance(route, Route)} - {
        "/docs",
        "/openapi.json",
        "/",
        "/dashboard/{path:path}",
    }
    streams = {"/alerts/live", "/watches/{name}/live"}  # streams of what happens have no answer: the tag names them
    assert streams <= routes
    assert all(path in str(DOCUMENT["tags"]) for path in streams)
    routes -= streams
    expected = {path.replace("{name}", name) if path.endswith(("/query", "/live")) else path
                for path in routes for name in declared.views}  # fmt: skip
    assert set(described) == expected | {"/health", "/ready", "/metrics"}


@pytest.mark.parametrize("view", [*VIEWS.values(), ODD], ids=lambda view: view.name)
def test_parameters_of_a_view_are_those_that_asking_knows(view: View) -> None:
    operation = DOCUMENT["paths"][f"/views/{view.name}/query"]["get"]
    described = {parameter["name"]: parameter for parameter in map(found, operation["parameters"])}
    known = {*PARAMETERS, *names_of(view, PARAMETERS)}
    may_lack = {"by", "quantiles"} | {name for name in known if name.endswith(".prefix")}
    assert set(described) <= known
    assert known - set(described) <= may_lack
    for name, parameter in described.items():
        if "example" in parameter:
            given = parameter["example"]
            text = ",".join(map(str, given)) if isinstance(given, list) else str(given)
            extra = [("grain", "day")] if name == "window" else []
            parse_query(view, [(name, text), *extra], now=1_772_323_200.0, limits=QueryLimits())
    assert ("by" in described) == bool(view.keys)
    assert set(described["answers"]["schema"]["items"]["enum"]) == set(view.answers)


@pytest.mark.parametrize("view", [*VIEWS.values(), ODD], ids=lambda view: view.name)
def test_example_of_an_answer_is_what_its_schema_says(view: View) -> None:
    content = DOCUMENT["paths"][f"/views/{view.name}/query"]["get"]["responses"]["200"]["content"]["application/json"]
    assert [*mistakes(content["examples"]["answer"]["value"], content["schema"])] == []


@pytest.mark.process
def test_examples_of_questions_are_questions(tmp_path: Path) -> None:
    with serving(tmp_path / "home") as served:
        examples = served.client.get("/openapi.json").json()["components"]["schemas"]["Question"]["examples"]
        assert examples
        for example in examples:
            assert served.client.post("/query", json=example).status_code == 200


@pytest.mark.process
def test_answers_are_what_their_schemas_say(tmp_path: Path) -> None:
    with serving(tmp_path / "home") as served:
        described = served.client.get("/openapi.json").json()
        assert described == describe(served.engine.declarations.views.values(), QueryLimits())
        for path, name in (
            ("/views", "/views"),
            ("/views/page_hits", "/views/{name}"),
            ("/sources", "/sources"),
            ("/sources/web", "/sources/{name}"),
            ("/session", "/session"),
            ("/views/page_hits/query?by=url&grain=day", "/views/page_hits/query"),
        ):
            schema = described["paths"][name]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
            assert [*mistakes(served.client.get(path).json(), schema)] == [], path
        refused = served.client.get("/views/page_hits/query?by=nothing").json()
        assert [*mistakes(refused, {"$ref": "#/components/schemas/Problem"})] == []
