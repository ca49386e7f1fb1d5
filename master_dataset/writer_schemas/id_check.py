"""Whether the registry still gives each schema id for the schema that records of a source were written with.

A rebase asks, because a registry in the same Kafka is new or older then, too.
"""

from __future__ import annotations

from collections.abc import Callable

from infra.clients.kafka import librdkafka_config
from infra.settings import Settings
from infra.stack.addresses import addresses
from master_dataset.errors import MasterDatasetError
from master_dataset.registry.noted_ids import NotedIds, NotedSchemasById
from master_dataset.registry.snapshot import read_state
from master_dataset.writer_schemas.own_registry import schema_in
from master_dataset.writer_schemas.registry import SchemaRegistry
from views.formats.framing import frame_of_id
from views.formats.writer_schemas import WriterSchema
from views.source import Source

SchemaOf = Callable[[int], WriterSchema | None]
MAX_SHOWN = 20


def check_ids(settings: Settings, source: Source) -> list[str]:
    """What a person has to know of the schema ids of a source; nothing where all are as they were."""
    noted = NotedIds.of(settings, source.name).read() if source.needs_writer_schemas else {}
    if not noted:
        return []
    is_own = settings.registry_enabled and not settings.schema_registry_url
    try:
        return differences(noted, _own(settings) if is_own else _named(settings), is_own=is_own)
    except MasterDatasetError as error:
        return [f"The schema ids of {source.name} could not be compared with the registry: {error}"]


def differences(noted: NotedSchemasById, schema_of: SchemaOf, *, is_own: bool) -> list[str]:
    """The noted ids that the registry gives to other schemas, and those that it does not know."""
    found = {schema_id: schema_of(schema_id) for schema_id in sorted(noted)}
    others = [each for each, schema in found.items() if schema is not None and {schema} != noted[each]]
    unknown = [each for each, schema in found.items() if schema is None]
    messages = []
    if others:
        messages.append(
            f"The registry has other schemas under {_ids(others)} than those that old records were written with. "
            "Every record that names them is read with the old ones, so new records are read wrongly. Stop the "
            "producers that use these ids, delete these versions permanently, and register their schemas again: "
            f"they {'get' if is_own else 'must get'} other ids."
        )
    if unknown:
        ids = "New schemas get higher ids." if is_own else f"It must give no id up to {max(noted)} to another schema."
        messages.append(
            f"The registry does not know {_ids(unknown)}, which old records name. These stay readable: their schemas "
            f"are noted beside the table. {ids} `tidemark restore` brings a registry back with all its ids, if a "
            "backup has it and nothing was registered since."
        )
    return messages


def _own(settings: Settings) -> SchemaOf:
    state = read_state(librdkafka_config(settings, addresses(settings).kafka))
    return lambda schema_id: schema_in(state, frame_of_id(schema_id)) if state.highest_id else None


def _named(settings: Settings) -> SchemaOf:
    registry = SchemaRegistry(settings)
    return lambda schema_id: registry.schema_of(frame_of_id(schema_id))


def _ids(ids: list[int]) -> str:
    shown = ", ".join(map(str, ids[:MAX_SHOWN]))
    more = f" and {len(ids) - MAX_SHOWN} more" if len(ids) > MAX_SHOWN else ""
    return f"schema {'id' if len(ids) == 1 else 'ids'} {shown}{more}"
