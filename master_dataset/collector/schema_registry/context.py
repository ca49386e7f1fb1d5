"""What the registry's routes share: the registry, and whom they answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from master_dataset.collector.context import Collector
from master_dataset.collector.permissions import Permissions
from master_dataset.collector.schema_registry.route import check_accepted
from master_dataset.registry.errors import subject_not_found, version_not_found
from master_dataset.registry.records import SchemaVersion
from master_dataset.registry.registry import Registry
from master_dataset.registry.rules import check_subject
from master_dataset.registry.schemas import AVRO, Reference, Schema
from master_dataset.registry.state import State

READ = ("schema:read", "schema:write", "admin")
WRITE = ("schema:write", "admin")


@dataclass(frozen=True)
class Serving:
    """The collector that serves, and its registry."""

    collector: Collector
    registry: Registry

    def allow_reading(self, request: Request) -> Permissions:
        """What a request may read."""
        return self._allow(request, READ)

    def allow_writing(self, request: Request) -> Permissions:
        """What a request may change."""
        return self._allow(request, WRITE)

    def _allow(self, request: Request, scopes: tuple[str, ...]) -> Permissions:
        """The key is checked before anything else."""
        allowed = self.collector.allow(request, *scopes)
        check_accepted(request)
        return allowed

    async def version_members(self, version: SchemaVersion, format: str = "") -> dict[str, Any]:
        """A version as clients read it."""
        return {
            "subject": version.subject,
            "version": version.version,
            "id": version.id,
            **guid_member(version),
            **content_members(version.schema),
            "schema": await self.registry.formatted(version.schema, format),
            **({"deleted": True} if version.deleted else {}),
        }


def guid_member(version: SchemaVersion) -> dict[str, Any]:
    """The GUID, where it is known."""
    return {} if version.guid is None else {"guid": version.guid}


def content_members(schema: Schema) -> dict[str, Any]:
    """What belongs to the text of a schema. Without a type it is Avro, as it always was."""
    return {
        **({} if schema.type == AVRO else {"schemaType": schema.type}),
        **({"references": [vars(each) for each in schema.references]} if schema.references else {}),
    }


def version_at(state: State, subject: str, number: int | None, *, deleted: bool) -> SchemaVersion:
    """A version of a subject, the latest without a number. Raises 40401 or 40402."""
    check_subject(state, subject, deleted=deleted)
    found = state.versions_of(subject, deleted=deleted)[-1] if number is None else None
    if number is not None:
        found = state.version(subject, number, deleted=deleted)
    if found is None:
        raise subject_not_found(subject) if number is None else version_not_found(number)
    return found


def check_references(allowed: Permissions, references: tuple[Reference, ...]) -> None:
    """Raise the problem 403 for a reference to a subject that the key may not use: it would read it that way."""
    for reference in references:
        allowed.check_subject(reference.subject)
