"""Schemas of the registry by REST: GET /schemas, and /schemas/{subject} with what differs between two versions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from infra.rest.access_keys import AccessKey
from infra.rest.responses import json_response, query_pairs
from infra.threads import P, T, Threads
from master_dataset.collector.permissions import Permissions
from master_dataset.registry.records import SchemaVersion
from master_dataset.registry.schemas import AVRO, JSON
from master_dataset.registry.state import State
from master_dataset.registry.texts import difference, readable
from serving_layer.engine import QueryEngine
from serving_layer.errors import BadParameter, UnknownSubject
from serving_layer.query import parameters
from serving_layer.query.limits import timed_out
from serving_layer.readers.registry import RegistryReader
from serving_layer.rest.access import SCOPES
from serving_layer.rest.context import GRACE_S, Serving
from serving_layer.rest.source_schema import schema_of
from serving_layer.rest.sources import read_by
from views.formats.subject_names import SUFFIX, subjects_of
from views.view import View

READ = ("schema:read", "schema:write", "admin")
MAX_WAITING = 20
MAX_LINES = 5_000
"""Of two texts that are compared: the time it takes grows with their product."""
MAX_SHOWN = 200
WHOLE = 10**9
"""Lines of a text that are shown around what differs: all."""
LARGEST_VERSION = 2**31 - 1


def may_read(key: AccessKey | None) -> bool:
    """Whether a key may read schemas."""
    return key is None or not key.scopes.isdisjoint(READ)


def schema_routes(serving: Serving) -> list[Route]:
    """The routes. A key sees its subjects, and if it may query, which of its views use what they describe."""
    reader, threads = RegistryReader(serving.settings), Threads("schemas", 1, MAX_WAITING)

    def views_of(request: Request, allowed: Permissions) -> list[View]:
        may_query = allowed.key is None or not allowed.key.scopes.isdisjoint(SCOPES)
        return list(serving.access.views(request).values()) if may_query else []

    async def run(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """In a thread of its own kind: a Kafka that does not answer keeps no query waiting."""
        timeout_s = serving.settings.serving_timeout_s
        try:
            async with asyncio.timeout(timeout_s + GRACE_S) as limit:
                return await threads.run_now(work, *arguments, **named)
        except TimeoutError:
            if not limit.expired():
                raise
            raise timed_out(timeout_s) from None

    async def subjects(request: Request) -> Response:
        allowed = Permissions(serving.declarations, serving.access.keys.check(request, *READ))
        for name, value in query_pairs(request):
            raise BadParameter(name, value, f"There is no parameter {name[:100]!r} here. Leave it out.")
        by_subject = _by_subject(views_of(request, allowed))
        return json_response(await run(lambda: _listed(reader.state(), allowed, by_subject)))

    async def subject(request: Request) -> Response:
        allowed = Permissions(serving.declarations, serving.access.keys.check(request, *READ))
        name = request.path_params["subject"]
        allowed.check_subject(name)
        asked = {"version": None, "compared": None} | _numbers(request)
        views = _by_subject(views_of(request, allowed)).get(name, [])
        return json_response(
            await run(lambda: _described(reader.state(), name, **asked, engine=serving.engine, views=views))
        )

    return [Route("/schemas", subjects), Route("/schemas/{subject:path}", subject)]


def _numbers(request: Request) -> dict[str, int]:
    found = {}
    for name, value in query_pairs(request):
        if name not in ("version", "compared"):
            detail = f"There is no parameter {name[:100]!r} here. There are: version, compared."
            raise BadParameter(name, value, detail, ["version", "compared"])
        found[name] = parameters.whole_number(name, value, 1, LARGEST_VERSION)
    return found


def _by_subject(views: list[View]) -> dict[str, list[View]]:
    found: dict[str, list[View]] = {}
    for view in views:
        for subject in {f"{view.source.topic}{SUFFIX}", *subjects_of(view.source)}:
            found.setdefault(subject, []).append(view)
    return found


def _listed(state: State, allowed: Permissions, by_subject: dict[str, list[View]]) -> dict[str, Any]:
    found = []
    for subject in state.subjects():
        if allowed.allows_subject(subject):
            versions = state.versions_of(subject)
            sources = sorted({view.source.name for view in by_subject.get(subject, ())})
            found.append(
                {
                    "subject": subject,
                    **_members(versions[-1]),
                    "versions": len(versions),
                    "level": state.level(subject),
                    "sources": sources,
                }
            )
    return {"subjects": found}


def _members(version: SchemaVersion) -> dict[str, Any]:
    return {"version": version.version, "id": version.id, "guid": version.guid, "type": version.schema.type}


def _described(
    state: State, subject: str, version: int | None, compared: int | None, engine: QueryEngine, views: list[View]
) -> dict[str, Any]:
    """A subject: its versions, the text of one, and how it differs from another, by default from the one before."""
    versions = state.versions_of(subject)
    if not versions:
        raise UnknownSubject(f"There is no subject {subject[:MAX_SHOWN]!r}. GET /schemas lists those of this key.")
    shown = versions[-1] if version is None else _find(versions, version)
    before = [each for each in versions if each.version < shown.version]
    other = _find(versions, compared) if compared is not None else before[-1] if before else None
    return {
        "subject": subject,
        "level": state.level(subject),
        "versions": [_members(each) for each in reversed(versions)],
        **_members(shown),
        "text": _text(shown),
        "references": [
            {"name": each.name, "subject": each.subject, "version": each.version} for each in shown.schema.references
        ],
        "compared": None if other is None else {"version": other.version, "lines": _difference(other, shown)},
        "sources": _sources(engine, views, shown),
    }


def _find(versions: list[SchemaVersion], number: int) -> SchemaVersion:
    found = next((each for each in versions if each.version == number), None)
    if found is None:
        there = ", ".join(str(each.version) for each in versions[-20:])
        raise UnknownSubject(f"Subject {versions[0].subject!r} has no version {number}. The newest are: {there}.")
    return found


def _text(version: SchemaVersion) -> str:
    return readable(version.schema.type, version.schema.text)


def _difference(before: SchemaVersion, after: SchemaVersion) -> list[str] | None:
    """All lines of both, each after ` `, `-` or `+`; None where they are too long to be compared."""
    texts = _text(before), _text(after)
    if sum(text.count("\n") for text in texts) > MAX_LINES:
        return None
    if texts[0] == texts[1]:
        return [f" {line}" for line in texts[1].splitlines()]
    return difference(*texts, context=WHOLE)[3:]  # without the heads of a diff


def _sources(engine: QueryEngine, views: list[View], version: SchemaVersion) -> list[dict[str, Any]]:
    """The sources whose records this subject describes: their fields, and which views use each."""
    names = _field_names(version)
    found = []
    for name in sorted({view.source.name for view in views}):
        source, shown = read_by(engine, [view for view in views if view.source.name == name])
        fields = [
            {
                "path": each["path"],
                "type": each["type"],
                "views": each["views"],
                "written": None
                if names is None or "." in each["path"]
                else not names.isdisjoint({each["path"], *each["aliases"]}),
            }
            for each in schema_of(source, shown)["fields"]
        ]
        found.append({"name": name, "version": source.version, "fields": fields})
    return found


def _field_names(version: SchemaVersion) -> set[str] | None:
    """The outermost fields that a version of a schema has; None where its text does not say so simply."""
    try:
        parsed = json.loads(version.schema.text)
        if version.schema.type == AVRO:
            return {str(each["name"]) for each in parsed["fields"]}
        return set(parsed["properties"]) if version.schema.type == JSON else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
