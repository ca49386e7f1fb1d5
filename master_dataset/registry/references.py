"""References between schemas: resolved to texts, each before whatever refers to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from master_dataset.registry.errors import RegistryError, invalid_schema, shown
from master_dataset.registry.schemas import Reference, Schema
from master_dataset.registry.state import State
from views.schemas import NamedSchema
from views.schemas.model import MAX_REFERENCES

MAX_DEPTH = 50
LATEST = -1
"""The version of a reference to whatever is the latest when the schema is submitted."""


def numbered(state: State, schema: Schema) -> Schema:
    """The schema with the number that each latest version has now. Raises 42201 for a subject without versions."""
    if all(reference.version != LATEST for reference in schema.references):
        return schema
    return replace(schema, references=tuple(_numbered(state, reference) for reference in schema.references))


def _numbered(state: State, reference: Reference) -> Reference:
    if reference.version != LATEST:
        return reference
    if not (versions := state.versions_of(reference.subject)):
        raise _not_found(reference)
    return replace(reference, version=versions[-1].version)


def resolve(state: State, schema: Schema) -> list[NamedSchema]:
    """What a schema refers to, directly or not, dependencies first. Raises 42201 for what is not there."""
    resolved: dict[str, Reference] = {}
    found: list[NamedSchema] = []
    _collect(state, schema.references, resolved, found, 1)
    return found


def _collect(
    state: State,
    references: Sequence[Reference],
    resolved: dict[str, Reference],
    found: list[NamedSchema],
    depth: int,
) -> None:
    if references and depth > MAX_DEPTH:
        raise invalid_schema(f"References may be nested {MAX_DEPTH} deep; these are deeper, or refer to themselves.")
    for reference in references:
        known = resolved.get(reference.name)
        if known is not None:
            if (known.subject, known.version) != (reference.subject, reference.version):
                raise invalid_schema(
                    f"The name {shown(reference.name)} stands for version {known.version} of {shown(known.subject)} "
                    f"and for version {reference.version} of {shown(reference.subject)}. Refer to one of them."
                )
            continue
        version = state.version(reference.subject, reference.version, deleted=True)
        if version is None:
            raise _not_found(reference)
        if len(resolved) >= MAX_REFERENCES:
            raise invalid_schema(f"A schema may refer to {MAX_REFERENCES} others, directly or not; this has more.")
        resolved[reference.name] = reference
        _collect(state, version.schema.references, resolved, found, depth + 1)
        found.append(NamedSchema(reference.name, version.schema.text))


def _not_found(reference: Reference) -> RegistryError:
    return invalid_schema(
        f"No schema reference found for subject {shown(reference.subject)} and version {reference.version}."
    )
