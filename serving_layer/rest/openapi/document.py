"""OpenAPI made from the declarations: a path for each view, with its own filters, answers, rows and examples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from infra.rest.access import SECURITY_SCHEMES
from infra.version import VERSION
from serving_layer.query.limits import QueryLimits
from serving_layer.query.parse import MAX_QUANTILES, PARAMETERS
from serving_layer.query.provenance import exactness
from serving_layer.rest.openapi.alerts import LIMIT, alert_schemas
from serving_layer.rest.openapi.alerts import listed as listed_of
from serving_layer.rest.openapi.schemas import SCALARS, Json, example, ref, schemas_of, shared_schemas
from views.aggregates import Quantiles
from views.field_types import FieldType
from views.view import View

DESCRIPTION = (
    "Ask declared views: batch and real-time states, merged at an exact cut of Kafka offsets. Every answer says in "
    "`meta` what it is made of. Times are ISO-8601, milliseconds since 1970, `now`, or relative like `-24h`."
)
TEXT: Json = {"type": "string"}
SHARED: Json = {
    "from": ("Beginning of the range.", TEXT | {"default": "-24h"}, "-7d"),
    "to": ("End of the range, which is not in it.", TEXT | {"default": "now"}, "now"),
    "tz": ("Zone of days, weeks, months, and of times without an offset.", TEXT | {"default": "UTC"}, "Europe/Berlin"),
    "limit": ("Rows of a page.", {"type": "integer", "minimum": 1, "default": 1000}, 100),
    "cursor": ("`next` of the page before.", TEXT, None),
    "compare": ("Each row also has its answers of one range earlier.", TEXT | {"enum": ["previous_period"]}, None),
    "window": ("Answers are taken over so long before the end of each period.", TEXT, "7d"),
    "fill": ("Periods and groups without events are rows too.", TEXT | {"enum": ["zero"]}, None),
    "explain": ("Each row also says what batch and speed views gave.", {"type": "boolean", "default": False}, None),
    "max_staleness": ("Answer 503 unless the views are so fresh, after `wait`.", TEXT, "5s"),
    "min_cut": ("Answer 412 unless the views have come so far, after `wait`.", TEXT, "0:17,1:20"),
    "wait": ("How long to wait for the two.", TEXT | {"default": "2s"}, "10s"),
    "format": ("Also by Accept.", TEXT | {"enum": ["json", "ndjson", "csv"], "default": "json"}, None),
}
"""Parameters that are the same for every view: description, schema, example."""


def describe(views: Iterable[View], limits: QueryLimits) -> Json:
    """The description for somebody who may see these views."""
    listed = list(views)
    schemas = shared_schemas([view.name for view in listed]) | alert_schemas()
    paths = _general_paths([view.name for view in listed])
    for view in listed:
        schemas |= schemas_of(view)
        paths |= _paths_of(view, limits)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tidemark serving layer", "version": VERSION, "description": DESCRIPTION},
        "security": [{"basic": []}, {"bearer": []}],
        "tags": [
            {"name": "views", "description": "What can be asked."},
            {"name": "alerts", "description": "What is told. Live: /alerts/live and /watches/{name}/live."},
            *({"name": view.name, "description": view.doc or f"The view {view.name}."} for view in listed),
            {"name": "sources", "description": "What the views are made from, and how far that is."},
            {"name": "session", "description": "Browsers that are signed in."},
            {"name": "health", "description": "Whether the serving layer works."},
        ],
        "paths": paths,
        "components": {
            "securitySchemes": SECURITY_SCHEMES,
            "schemas": schemas,
            "parameters": {name: _parameter(name, *said, limits=limits) for name, said in SHARED.items()},
            "responses": {"problem": _problem_response("What went wrong, and what to do.")},
        },
    }


# ---- paths ---------------------------------------------------------------------


def _general_paths(views: list[str]) -> Json:
    listed = {
        "type": "object",
        "required": ["views"],
        "properties": {"views": {"type": "array", "items": ref("View")}},
    }
    known = {"type": "string", **({"enum": views} if views else {})}
    name = {"name": "name", "in": "path", "required": True, "schema": known, "description": "A view."}
    several = {
        "type": "object",
        "required": ["answers"],
        "properties": {"answers": {"type": "array", "items": ref("Answer")}},
    }
    return {
        "/views": {"get": _operation("list_views", "views", "The views that this key may see.", [], _json(listed))},
        "/views/{name}": {
            "get": _operation(
                "describe_view", "views", "A view: its definition, its version, how fresh and how large it is.",
                [name], _json(ref("ViewDetails")),
            )
        },
        "/query": {
            "post": {
                **_operation(
                    "query", "views",
                    "One question, or several, which are answered at one cut of each source. The members of a question "
                    "are the parameters of its view's query; filters on keys are in `filters`.",
                    [], _json({"anyOf": [ref("Answer"), several]}),
                ),
                "requestBody": {"required": True, "content": {"application/json": {
                    "schema": {"anyOf": [ref("Question"), ref("Questions")]},
                }}},
            }
        },
        **_watching_paths(),
        "/alerts": {"get": _operation(
            "list_alerts", "alerts", "The alerts on views that this key may see, and what is open of them.", [],
            _json(listed_of("alerts", "Alert")),
        )},
        "/alerts/history": {"get": _operation(
            "list_episodes", "alerts", "The newest episodes of these alerts.", [LIMIT],
            _json(listed_of("episodes", "Episode")),
        )},
        "/watches": {"get": _operation(
            "list_watches", "alerts", "The watches that this key may see, and how many events they matched.", [],
            _json(listed_of("watches", "Watch")),
        )},
        "/health": {"get": _open_operation("health", "Whether this process runs.")},
        "/ready": {"get": _open_operation("ready", "Whether questions can be answered, and by which parts.")},
        "/metrics": {"get": _operation(
            "metrics", "health", "Numbers for Prometheus; for a key with the scope metrics.", [],
            {"200": {"description": "In its text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
        )},
    }  # fmt: skip


def _watching_paths() -> Json:
    """Sources, and sessions of browsers."""
    sources = {
        "type": "object",
        "required": ["sources", "services"],
        "properties": {
            "sources": {"type": "array", "items": ref("SourceSummary")},
            "services": {"type": ["array", "null"], "items": {"type": "object"}},
        },
    }
    name = {
        "name": "name", "in": "path", "required": True, "schema": {"type": "string"}, "description": "A source.",
    }  # fmt: skip
    credentials = {
        "type": "object",
        "required": ["name", "secret"],
        "properties": {"name": {"type": "string"}, "secret": {"type": "string"}},
    }
    sign_in = _operation(
        "sign_in", "session", "Exchange name and secret of a key for a cookie, for pages of this server.", [],
        _json(ref("Session")),
    )  # fmt: skip
    return {
        "/sources": {
            "get": _operation(
                "list_sources", "sources", "The sources of these views, and the processes.", [], _json(sources)
            )
        },
        "/sources/{name}": {
            "get": _operation(
                "describe_source", "sources", "How a source stands: cuts, generations, and its newest runs.", [name],
                _json(ref("SourceDetails")),
            )
        },
        "/session": {
            "get": _operation("who", "session", "Whose key this is.", [], _json(ref("Session"))),
            "post": {
                **sign_in,
                "security": [],
                "requestBody": {"required": True, "content": {"application/json": {"schema": credentials}}},
            },
            "delete": {
                **_operation("sign_out", "session", "End the session.", [], {"204": {"description": "It has ended."}}),
                "security": [],
            },
        },
    }  # fmt: skip


def _paths_of(view: View, limits: QueryLimits) -> Json:
    parameters = [*_parameters_of(view), *({"$ref": f"#/components/parameters/{name}"} for name in SHARED)]
    what = view.doc or f"Ask the view {view.name}."
    exact = "\n".join(f"- `{name}`: {exactness(view, name).get('error', 'exact')}" for name in view.answers)
    rows = {
        "application/json": {"schema": ref(f"{view.name}_answer"), "examples": {"answer": {"value": example(view)}}}
    }
    others = {media: {"schema": {"type": "string"}} for media in ("application/x-ndjson", "text/csv")}
    etag = {"ETag": {"description": "The same as long as the answer is.", "schema": {"type": "string"}}}
    query = {
        **_operation(
            f"query_{view.name}", view.name, what, parameters,
            {
                "200": {"description": "The answer.", "headers": etag, "content": {**rows, **others}},
                "304": {"description": "The client has it: it sent the ETag in If-None-Match."},
            },
        ),
        "description": f"{what}\n\nHow exact its answers are:\n\n{exact}",
    }  # fmt: skip
    every = {
        "name": "every", "in": "query", "description": "Least time between two answers.",
        "schema": {"type": "string", "default": "1s"}, "example": "5s",
    }  # fmt: skip
    not_live = {"cursor", "min_cut", "wait", "format"}
    of_live = [
        *_parameters_of(view), every,
        *({"$ref": f"#/components/parameters/{name}"} for name in SHARED if name not in not_live),
    ]  # fmt: skip
    live = _operation(
        f"follow_{view.name}", view.name,
        f"{what} As server-sent events: `answer` at once and whenever it changes, `problem` while there is none. "
        "The same path takes a WebSocket.",
        of_live,
        {"200": {"description": "A stream of events.", "content": {"text/event-stream": {"schema": TEXT}}}},
    )  # fmt: skip
    return {f"/views/{view.name}/query": {"get": query}, f"/views/{view.name}/live": {"get": live}}


def _parameters_of(view: View) -> list[Json]:
    """The filters on its keys, and the parameters whose words are its own."""
    found = [each for key, typed in view.key_expressions.items() for each in _filters_of(key, typed.type)]
    grain = f"Length of a period: {view.grain}, a multiple of it that divides a day, hour, day, week, month, or all."
    found += [
        _own("grain", grain, {"type": "string", "default": "all"}, "day"),
        _own("answers", "Which answers; without it all.", _list_of(view.answers)),
        _own("order", "What rows are sorted by, `-` before for descending.", _sortable(view)),
        _own(
            "having",
            "A condition over numeric answers, which rows must meet.",
            {"type": "string"},
            next((f"{name} > 0" for name in _numbers(view)), None),
        ),
    ]
    if view.keys:
        found.append(_own("by", "One row for each value of these keys; without it the total.", _list_of(view.keys)))
    if any(isinstance(answer, Quantiles) for answer in view.answers.values()):
        share = {"type": "number", "minimum": 0, "maximum": 1}
        shares = {"type": "array", "items": share, "minItems": 1, "maxItems": MAX_QUANTILES, "uniqueItems": True}
        found.append(_own("quantiles", "Shares at which quantiles are presented.", shares, [0.5, 0.99]))
    return found


def _filters_of(key: str, kind: FieldType) -> list[Json]:
    name = f"key.{key}" if key in PARAMETERS else key
    values = {"type": "array", "items": SCALARS[kind.kind]}
    several: Json = {"in": "query", "style": "form", "explode": True}
    found = [
        {"name": name, **several, "schema": values, "description": f"Only this {key}; several times: one of these."},
        {"name": f"{name}.not", **several, "schema": values, "description": f"Not this {key}, or none of these."},
        {
            "name": f"{name}.null",
            "in": "query",
            "schema": {"type": "boolean"},
            "description": f"Whether {key} is null.",
        },
    ]
    if kind.kind == "string":
        text = f"A {key} that begins with this, or one of these."
        found.append({"name": f"{name}.prefix", **several, "schema": values, "description": text})
    return found


def _own(name: str, description: str, schema: Json, example: Any = None) -> Json:
    found: Json = {"name": name, "in": "query", "description": description, "schema": schema}
    if schema.get("type") == "array":
        found |= {"style": "form", "explode": False}
    return found if example is None else {**found, "example": example}


def _list_of(names: Iterable[str]) -> Json:
    return {"type": "array", "items": {"type": "string", "enum": list(names)}, "minItems": 1, "uniqueItems": True}


def _sortable(view: View) -> Json:
    names = ["bucket", *view.keys, *(name for name, kind in view.answer_types.items() if kind is not None)]
    both = [*names, *(f"-{name}" for name in names)]
    return {"type": "array", "items": {"type": "string", "enum": both}, "minItems": 1, "uniqueItems": True}


def _numbers(view: View) -> list[str]:
    return [name for name, kind in view.answer_types.items() if kind is not None and kind.kind in ("bigint", "double")]


def _parameter(name: str, description: str, schema: Json, example: Any, *, limits: QueryLimits) -> Json:
    if name == "limit":
        schema = {**schema, "maximum": limits.max_rows, "default": min(schema["default"], limits.max_rows)}
    return _own(name, description, schema, example)


def _operation(operation_id: str, tag: str, summary: str, parameters: list[Json], responses: Json) -> Json:
    return {
        "operationId": operation_id,
        "tags": [tag],
        "summary": summary,
        "parameters": parameters,
        "responses": {**responses, "default": {"$ref": "#/components/responses/problem"}},
    }


def _open_operation(operation_id: str, summary: str) -> Json:
    """One that needs no key."""
    return {**_operation(operation_id, "health", summary, [], _json({"type": "object"})), "security": []}


def _json(schema: Json) -> Json:
    return {"200": {"description": "The answer.", "content": {"application/json": {"schema": schema}}}}


def _problem_response(description: str) -> Json:
    return {"description": description, "content": {"application/problem+json": {"schema": ref("Problem")}}}
