"""Subjects and their versions: list, register, look up, check, delete."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from master_dataset.collector.permissions import Permissions
from master_dataset.collector.schema_registry.context import (
    Serving,
    check_references,
    guid_member,
    version_at,
)
from master_dataset.collector.schema_registry.requests import (
    Parameters,
    names,
    read_schema,
    subject_of,
    version_of,
)
from master_dataset.collector.schema_registry.route import PREFIX, RegistryRoute, reply
from master_dataset.registry import rules
from master_dataset.registry.errors import schema_not_found, version_not_found
from master_dataset.registry.records import SchemaVersion
from master_dataset.registry.rules import check_subject
from master_dataset.registry.state import State
from master_dataset.registry.topic import Decision

MAX_MESSAGES = 100


def subject_routes(serving: Serving) -> APIRouter:
    """`/subjects/...` and `/compatibility/...`."""
    routes = APIRouter(tags=["schema registry"], route_class=RegistryRoute)

    def allowed_for(request: Request, index: int, *, writing: bool = False) -> tuple[Permissions, str]:
        """The key is checked before the name is looked at."""
        allowed = serving.allow_writing(request) if writing else serving.allow_reading(request)
        subject = subject_of(request, index)
        allowed.check_subject(subject)
        return allowed, subject

    def requested_version(request: Request) -> SchemaVersion:
        _, subject = allowed_for(request, 1)
        number = version_of(names(request)[3])
        return version_at(serving.registry.state, subject, number, deleted=Parameters(request).flag("deleted"))

    @routes.get(f"{PREFIX}/subjects")
    async def list_subjects(request: Request) -> Response:
        """The subjects. `subjectPrefix`, `deleted`, `deletedOnly`, `offset` and `limit` select."""
        allowed, state, parameters = serving.allow_reading(request), serving.registry.state, Parameters(request)
        prefix = parameters.text("subjectprefix")
        deleted_only = parameters.flag("deletedonly")
        live = set(state.subjects())
        found = [
            subject
            for subject in state.subjects(deleted=deleted_only or parameters.flag("deleted"))
            if subject.startswith("" if prefix == ":*:" else prefix)
            and allowed.allows_subject(subject)
            and not (deleted_only and subject in live)
        ]
        return reply(request, parameters.page(found))

    @routes.post(f"{PREFIX}/subjects/{{subject}}")
    async def look_up(request: Request) -> Response:
        """The version of a subject that has the content in the body."""
        allowed, subject = allowed_for(request, 1)
        submitted, parameters = await read_schema(serving.collector, request), Parameters(request)
        check_references(allowed, submitted.schema.references)
        deleted = parameters.flag("deleted")
        check_subject(serving.registry.state, subject, deleted=deleted)
        version = await serving.registry.find(
            subject, submitted.schema, normalize=parameters.flag("normalize"), deleted=deleted
        )
        if version is None:
            raise schema_not_found()
        return reply(request, await serving.version_members(version, parameters.text("format")))

    @routes.delete(f"{PREFIX}/subjects/{{subject}}")
    async def delete_subject(request: Request) -> Response:
        """Delete all versions of a subject, softly or with `permanent` for good."""
        _, subject = allowed_for(request, 1, writing=True)
        permanent = Parameters(request).flag("permanent")
        decide = partial(rules.delete_subject, subject=subject, permanent=permanent)
        return reply(request, await serving.registry.change(decide))

    @routes.get(f"{PREFIX}/subjects/{{subject}}/versions")
    async def list_versions(request: Request) -> Response:
        """The versions of a subject. `deleted`, `deletedOnly`, `offset` and `limit` select."""
        _, subject = allowed_for(request, 1)
        state, parameters = serving.registry.state, Parameters(request)
        deleted_only = parameters.flag("deletedonly")
        deleted = deleted_only or parameters.flag("deleted")
        check_subject(state, subject, deleted=deleted)
        versions = state.versions_of(subject, deleted=deleted)
        found = [version.version for version in versions if version.deleted or not deleted_only]
        return reply(request, parameters.page(found))

    @routes.post(f"{PREFIX}/subjects/{{subject}}/versions")
    async def register(request: Request) -> Response:
        """Register a schema: the id of the one that is there, or a new version."""
        allowed, subject = allowed_for(request, 1, writing=True)
        submitted, parameters = await read_schema(serving.collector, request), Parameters(request)
        check_references(allowed, submitted.schema.references)
        if submitted.id is not None:  # the next new schema of any subject has a higher one
            allowed.check_all_subjects()
        version = await serving.registry.register(subject, submitted, normalize=parameters.flag("normalize"))
        # Without the text: confluent-kafka would cache it as what it sent itself, which is no text for Protobuf.
        return reply(request, {"id": version.id, "version": version.version, **guid_member(version)})

    @routes.get(f"{PREFIX}/subjects/{{subject}}/versions/{{version}}")
    async def read_version(request: Request) -> Response:
        """A version of a subject, by number or `latest`."""
        version = requested_version(request)
        return reply(request, await serving.version_members(version, Parameters(request).text("format")))

    @routes.get(f"{PREFIX}/subjects/{{subject}}/versions/{{version}}/schema")
    async def read_text(request: Request) -> Response:
        """The text of a version and nothing else."""
        version = requested_version(request)
        text = await serving.registry.formatted(version.schema, Parameters(request).text("format"))
        return Response(text, media_type=reply(request, None).media_type)

    @routes.get(f"{PREFIX}/subjects/{{subject}}/versions/{{version}}/referencedby")
    async def referenced_by(request: Request) -> Response:
        """The ids of the schemas that refer to a version."""
        version = requested_version(request)
        ids = serving.registry.state.referenced_by(version.subject, version.version)
        return reply(request, Parameters(request).page(ids))

    @routes.delete(f"{PREFIX}/subjects/{{subject}}/versions/{{version}}")
    async def delete_version(request: Request) -> Response:
        """Delete a version, softly or with `permanent` for good."""
        _, subject = allowed_for(request, 1, writing=True)
        number, permanent = version_of(names(request)[3]), Parameters(request).flag("permanent")

        def decide(state: State) -> Decision:
            version = number or version_at(state, subject, None, deleted=permanent).version
            return rules.delete_version(state, subject, version, permanent=permanent)

        return reply(request, await serving.registry.change(decide))

    async def check(request: Request, subject: str, allowed: Permissions, versions: list[SchemaVersion]) -> Response:
        submitted, parameters = await read_schema(serving.collector, request), Parameters(request)
        check_references(allowed, submitted.schema.references)
        reasons = await serving.registry.incompatibilities(
            subject, submitted.schema, versions, normalize=parameters.flag("normalize")
        )
        messages = {"messages": reasons[:MAX_MESSAGES]} if reasons else {}
        return reply(request, {"is_compatible": not reasons, **messages})

    @routes.post(f"{PREFIX}/compatibility/subjects/{{subject}}/versions")
    async def check_all(request: Request) -> Response:
        """Whether a schema could be registered in a subject, by the subject's level."""
        allowed, subject = allowed_for(request, 2)
        return await check(request, subject, allowed, serving.registry.state.versions_of(subject))

    @routes.post(f"{PREFIX}/compatibility/subjects/{{subject}}/versions/{{version}}")
    async def check_version(request: Request) -> Response:
        """Whether a schema is compatible with one version of a subject, by the subject's level."""
        allowed, subject = allowed_for(request, 2)
        number, state = version_of(names(request)[4]), serving.registry.state
        versions = state.versions_of(subject)[-1:]  # of a new subject none
        if number is not None:
            version = state.version(subject, number)
            if version is None:
                raise version_not_found(number)
            versions = [version]
        return await check(request, subject, allowed, versions)

    return routes
