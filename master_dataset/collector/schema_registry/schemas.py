"""Schemas by id and GUID, lists of all, and what the registry is able to do."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from master_dataset.collector.permissions import Permissions
from master_dataset.collector.schema_registry.context import Serving, content_members, guid_member
from master_dataset.collector.schema_registry.requests import TYPES, Parameters, id_of, names
from master_dataset.collector.schema_registry.route import PREFIX, RegistryRoute, reply
from master_dataset.registry.errors import RegistryError, schema_not_found
from master_dataset.registry.records import SchemaVersion


def schema_routes(serving: Serving) -> APIRouter:
    """`/schemas/...`, `/contexts` and the root."""
    routes = APIRouter(tags=["schema registry"], route_class=RegistryRoute)

    @routes.get(PREFIX)
    async def root(request: Request) -> Response:
        """An empty object: clients ask whether there is a registry."""
        serving.allow_reading(request)
        return reply(request, {})

    @routes.get(f"{PREFIX}/")
    async def root_with_slash(request: Request) -> Response:
        """The same."""
        return await root(request)

    @routes.get(f"{PREFIX}/contexts")
    async def contexts(request: Request) -> Response:
        """The default context, which is the only one."""
        serving.allow_reading(request)
        return reply(request, ["."])

    @routes.get(f"{PREFIX}/schemas/types")
    async def types(request: Request) -> Response:
        """The types of schemas."""
        serving.allow_reading(request)
        return reply(request, TYPES)

    @routes.get(f"{PREFIX}/schemas")
    async def list_schemas(request: Request) -> Response:
        """All versions of all subjects. `subjectPrefix`, `deleted`, `latestOnly`, `offset` and `limit` select."""
        allowed, state, parameters = serving.allow_reading(request), serving.registry.state, Parameters(request)
        deleted, latest_only = parameters.flag("deleted"), parameters.flag("latestonly")
        found: list[SchemaVersion] = []
        for subject in state.subjects(deleted=deleted):
            if subject.startswith(parameters.text("subjectprefix")) and allowed.allows_subject(subject):
                versions = state.versions_of(subject, deleted=deleted)
                found += versions[-1:] if latest_only else versions
        return reply(request, [await serving.version_members(version) for version in parameters.page(found)])

    @routes.get(f"{PREFIX}/schemas/ids/{{id}}")
    async def schema_by_id(request: Request) -> Response:
        """The content of an id, also of one that is soft-deleted: records that were written with it remain."""
        version = _version_of_id(serving, request)
        parameters = Parameters(request)
        answer = {
            **guid_member(version),
            **content_members(version.schema),
            "schema": await serving.registry.formatted(version.schema, parameters.text("format")),
        }
        if parameters.flag("fetchmaxid"):
            answer["maxId"] = serving.registry.state.highest_id
        return reply(request, answer)

    @routes.get(f"{PREFIX}/schemas/ids/{{id}}/schema")
    async def text_by_id(request: Request) -> Response:
        """The text of a schema and nothing else."""
        version = _version_of_id(serving, request)
        text = await serving.registry.formatted(version.schema, Parameters(request).text("format"))
        return Response(text, media_type=reply(request, None).media_type)

    @routes.get(f"{PREFIX}/schemas/ids/{{id}}/subjects")
    async def subjects_of_id(request: Request) -> Response:
        """The subjects that have a schema."""
        uses = _uses_of_id(serving, request)
        return reply(request, Parameters(request).page(sorted({version.subject for version in uses})))

    @routes.get(f"{PREFIX}/schemas/ids/{{id}}/versions")
    async def versions_of_id(request: Request) -> Response:
        """The subjects and versions that have a schema."""
        uses = _uses_of_id(serving, request)
        page = Parameters(request).page(uses)
        return reply(request, [{"subject": version.subject, "version": version.version} for version in page])

    @routes.get(f"{PREFIX}/schemas/guids/{{guid}}")
    async def schema_by_guid(request: Request) -> Response:
        """The content of a GUID."""
        version = _uses_of_guid(serving, request)[0]
        text = await serving.registry.formatted(version.schema, Parameters(request).text("format"))
        return reply(request, {**guid_member(version), **content_members(version.schema), "schema": text})

    @routes.get(f"{PREFIX}/schemas/guids/{{guid}}/ids")
    async def ids_of_guid(request: Request) -> Response:
        """The ids of a GUID, each with its context."""
        ids = sorted({version.id for version in _uses_of_guid(serving, request)})
        return reply(request, [{"context": ".", "id": each} for each in ids])

    return routes


def _version_of_id(serving: Serving, request: Request) -> SchemaVersion:
    """A version that has the id; where the request names a subject, one of it if there is one."""
    allowed, schema_id = serving.allow_reading(request), id_of(names(request)[2])
    uses = _allowed(allowed, serving.registry.state.uses_of(schema_id, deleted=True))
    if not uses:
        raise schema_not_found(str(schema_id))
    subject = Parameters(request).text("subject")
    return next((version for version in uses if version.subject == subject), uses[0])


def _uses_of_id(serving: Serving, request: Request) -> list[SchemaVersion]:
    allowed, schema_id = serving.allow_reading(request), id_of(names(request)[2])
    state, parameters = serving.registry.state, Parameters(request)
    if not _allowed(allowed, state.uses_of(schema_id, deleted=True)):
        raise schema_not_found(str(schema_id))
    subject = parameters.text("subject")
    uses = _allowed(allowed, state.uses_of(schema_id, deleted=parameters.flag("deleted")))
    return [version for version in uses if subject in ("", version.subject)]


def _uses_of_guid(serving: Serving, request: Request) -> list[SchemaVersion]:
    allowed, given = serving.allow_reading(request), names(request)[2]
    try:
        guid = str(UUID(given))
    except ValueError:
        raise RegistryError(
            404, f"There is no schema with the GUID {given[:100]!r}: a GUID has 32 hex digits."
        ) from None
    uses = _allowed(allowed, serving.registry.state.uses_of_guid(guid))
    if not uses:
        raise schema_not_found(guid)
    return uses


def _allowed(allowed: Permissions, versions: list[SchemaVersion]) -> list[SchemaVersion]:
    return [version for version in versions if allowed.allows_subject(version.subject)]
