"""The OpenAPI document of the serving layer.

The paths of each view come from its declaration, with filters, answers, rows and examples. The other paths are written
here by hand: a new route has to be added. Schemas are in schemas.py and alerts.py.
"""

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
    "Query declared views: batch and real-time states, merged at an exact cut of Kafka offsets. `meta` of every answer "
    "says what it is made of. Times are ISO 8601, milliseconds since 1970, `now`, or relative like `-24h`."
)
TEXT: Json = {"type": "string"}
SHARED: Json = {
    "from": ("Start of the range, inclusive.", TEXT | {"default": "-24h"}, "-7d"),
    "to": ("End of the range, exclusive.", TEXT | {"default": "now"}, "now"),
    "tz": (
        "Time zone of days, weeks, months, and of times without an offset.",
        TEXT | {"default": "UTC"},
        "Europe/Berlin",
    ),
    "limit": ("Rows of a page.", {"type": "integer", "minimum": 1, "default": 1000}, 100),
    "cursor": ("`next` of the page before.", TEXT, None),
    "compare": ("Each row also has the answers of the range before.", TEXT | {"enum": ["previous_period"]}, None),
    "window": ("Answers are over a rolling window of this length, which ends with each period.", TEXT, "7d"),
    "fill": ("Periods and groups without events are rows too.", TEXT | {"enum": ["zero"]}, None),
    "explain": (
        "Each row also has the answers of the batch view and of the speed view.",
        {"type": "boolean", "default": False},
        None,
    ),
    "max_staleness": ("Respond 503 if the views are older than this, after `wait`.", TEXT, "5s"),
    "min_cut": ("Respond 412 if the views have not reached these offsets, after `wait`.", TEXT, "0:17,1:20"),
    "wait": ("How long to wait for max_staleness and min_cut.", TEXT | {"default": "2s"}, "10s"),
    "format": (
        "Format of the response; the Accept header works too.",
        TEXT | {"enum": ["json", "ndjson", "csv"], "default": "json"},
        None,
    ),
}
"""Parameters that are the same for every view: description, schema, example."""


def describe(views: Iterable[View], limits: QueryLimits) -> Json:
    """The document for a key that may see these views."""
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
            {"name": "views", "description": "Views and queries."},
            {"name": "alerts", "description": "Alerts and watches. Live: /alerts/live and /watches/{name}/live."},
            *({"name": view.name, "description": view.doc or f"The view {view.name}."} for view in listed),
            {"name": "sources", "description": "Sources of the views, and how far they are."},
            {"name": "schemas", "description": "Schemas of the registry, for keys that may read them."},
            {"name": "session", "description": "Sessions of browsers."},
            {"name": "health", "description": "Health of the serving layer."},
        ],
        "paths": paths,
        "components": {
            "securitySchemes": SECURITY_SCHEMES,
            "schemas": schemas,
            "parameters": {name: _parameter(name, *said, limits=limits) for name, said in SHARED.items()},
            "responses": {"problem": _problem_response("What was asked, what was found, what to do.")},
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
    refused = {"type": "object", "required": ["problem"], "properties": {"problem": {"type": "object"}}}
    several = {
        "type": "object",
        "required": ["answers"],
        "properties": {"answers": {"type": "array", "items": {"anyOf": [ref("Answer"), refused]}}},
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
                    "One query, or several, which are executed at one cut of each source. The members of a query are "
                    "the parameters of its view; filters on keys are in `filters`.",
                    [], _json({"anyOf": [ref("Answer"), several]}),
                ),
                "requestBody": {"required": True, "content": {"application/json": {
                    "schema": {"anyOf": [ref("Question"), ref("Questions")]},
                }}},
            }
        },
        **_watching_paths(),
        "/alerts": {"get": _operation(
            "list_alerts", "alerts", "The alerts on views that this key may see, and their open episodes.", [],
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
        "/health": {"get": _open_operation("health", "Whether the process runs.")},
        "/ready": {"get": _open_operation("ready", "Whether queries can be answered, and from which views.")},
        "/metrics": {"get": _operation(
            "metrics", "health", "Metrics for Prometheus, for a key with the scope metrics.", [],
            {"200": {"description": "The text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
        )},
    }  # fmt: skip


def _watching_paths() -> Json:
    """The paths of sources and sessions."""
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
        "sign_in", "session", "Exchange the name and secret of a key for a cookie, for pages of this server.", [],
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
                "describe_source", "sources", "A source: its cuts, generations and newest runs.", [name],
                _json(ref("SourceDetails")),
            )
        },
        "/schemas": {
            "get": _operation(
                "list_schemas", "schemas",
                "The subjects of the schema registry that this key may read. It needs the scope schema:read.",
                [], _json(listed_of("subjects", "Subject")),
            )
        },
        "/schemas/{subject}": {
            "get": _operation(
                "describe_subject", "schemas",
                "A subject: its versions, the text of one, how it differs from another, and which views use it.",
                [
                    {**name, "name": "subject", "description": "A subject."},
                    _version("version", "The version to show; the latest if it is left out."),
                    _version("compared", "The version to compare with; the one before if it is left out."),
                ],
                _json(ref("SubjectDetails")),
            )
        },
        "/session": {
            "get": _operation("who", "session", "Whose session this is.", [], _json(ref("Session"))),
            "post": {
                **sign_in,
                "security": [],
                "requestBody": {"required": True, "content": {"application/json": {"schema": credentials}}},
            },
            "delete": {
                **_operation("sign_out", "session", "End the session.", [], {"204": {"description": "Ended."}}),
                "security": [],
            },
        },
    }  # fmt: skip


def _version(name: str, description: str) -> Json:
    number = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
    return {"name": name, "in": "query", "schema": number, "description": description}


def _paths_of(view: View, limits: QueryLimits) -> Json:
    parameters = [*_parameters_of(view), *({"$ref": f"#/components/parameters/{name}"} for name in SHARED)]
    what = view.doc or f"Query the view {view.name}."
    exact = "\n".join(f"- `{name}`: {exactness(view, name).get('error', 'exact')}" for name in view.answers)
    rows = {
        "application/json": {"schema": ref(f"{view.name}_answer"), "examples": {"answer": {"value": example(view)}}}
    }
    others = {media: {"schema": {"type": "string"}} for media in ("application/x-ndjson", "text/csv")}
    etag = {"ETag": {"description": "Changes with the answer.", "schema": {"type": "string"}}}
    query = {
        **_operation(
            f"query_{view.name}", view.name, what, parameters,
            {
                "200": {"description": "The answer.", "headers": etag, "content": {**rows, **others}},
                "304": {"description": "Not modified: the client has this answer (If-None-Match)."},
            },
        ),
        "description": f"{what}\n\nAccuracy of its answers:\n\n{exact}",
    }  # fmt: skip
    every = {
        "name": "every", "in": "query", "description": "Shortest time between two answers.",
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
        "The same path accepts a WebSocket.",
        of_live,
        {"200": {"description": "A stream of events.", "content": {"text/event-stream": {"schema": TEXT}}}},
    )  # fmt: skip
    return {f"/views/{view.name}/query": {"get": query}, f"/views/{view.name}/live": {"get": live}}


def _parameters_of(view: View) -> list[Json]:
    """The filters on its keys, and the parameters that depend on the view."""
    found = [each for key, typed in view.key_expressions.items() for each in _filters_of(key, typed.type)]
    grain = f"Length of a period: {view.grain}, a multiple of it that divides a day, hour, day, week, month, or all."
    found += [
        _own("grain", grain, {"type": "string", "default": "all"}, "day"),
        _own("answers", "Which answers; all by default.", _list_of(view.answers)),
        _own("order", "Columns to sort by; `-` in front means descending.", _sortable(view)),
        _own(
            "having",
            "A condition on numeric answers that rows must meet.",
            {"type": "string"},
            next((f"{name} > 0" for name in _numbers(view)), None),
        ),
    ]
    if view.keys:
        found.append(_own("by", "One row for each value of these keys; by default the total.", _list_of(view.keys)))
    if any(isinstance(answer, Quantiles) for answer in view.answers.values()):
        share = {"type": "number", "minimum": 0, "maximum": 1}
        shares = {"type": "array", "items": share, "minItems": 1, "maxItems": MAX_QUANTILES, "uniqueItems": True}
        found.append(_own("quantiles", "Additional quantiles, as numbers from 0 to 1.", shares, [0.5, 0.99]))
    return found


def _filters_of(key: str, kind: FieldType) -> list[Json]:
    name = f"key.{key}" if key in PARAMETERS else key
    values = {"type": "array", "items": SCALARS[kind.kind]}
    several: Json = {"in": "query", "style": "form", "explode": True}
    found = [
        {"name": name, **several, "schema": values, "description": f"{key} is this value, or one of several."},
        {
            "name": f"{name}.not",
            **several,
            "schema": values,
            "description": f"{key} is not this value, or none of several.",
        },
        {
            "name": f"{name}.null",
            "in": "query",
            "schema": {"type": "boolean"},
            "description": f"Whether {key} is null.",
        },
    ]
    if kind.kind == "string":
        text = f"{key} begins with this string, or one of several."
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
    """An operation that needs no key."""
    return {**_operation(operation_id, "health", summary, [], _json({"type": "object"})), "security": []}


def _json(schema: Json) -> Json:
    return {"200": {"description": "The answer.", "content": {"application/json": {"schema": schema}}}}


def _problem_response(description: str) -> Json:
    return {"description": description, "content": {"application/problem+json": {"schema": ref("Problem")}}}
