"""Our own registry for the layers that decode: its topic says what an id stands for, also while no collector runs."""

from __future__ import annotations

from functools import cached_property

from infra.clients.kafka import librdkafka_config
from infra.settings import Settings
from infra.stack.addresses import addresses
from master_dataset.registry.errors import RegistryError, UnreadableTopic
from master_dataset.registry.references import resolve
from master_dataset.registry.snapshot import read_state
from master_dataset.registry.state import State
from master_dataset.writer_schemas.registry import RegistryAway
from views.formats.framing import ID_BYTE, name_of
from views.formats.writer_schemas import WriterSchema


class OwnRegistry:
    """The registry that the collector of this home serves. What is registered after the first question is not seen."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def schema_of(self, frame: bytes) -> WriterSchema | None:
        """The schema that a frame names; None where the registry has others, but not this one."""
        return schema_in(self._state, frame)

    @cached_property
    def _state(self) -> State:
        try:
            return read_state(librdkafka_config(self._settings, addresses(self._settings).kafka))
        except UnreadableTopic as error:
            raise RegistryAway(
                f"The schema registry of this home cannot be asked for the schema of a record. {error} The collector "
                "creates the topic when it starts. For another registry, set schema_registry_url."
            ) from None


def schema_in(state: State, frame: bytes) -> WriterSchema | None:
    """The schema that a frame names, with everything that it refers to.

    A registry without any schema is taken for the wrong one: records wait, instead of becoming dead letters for good.
    """
    if not state.highest_id:
        raise RegistryAway(
            "A record names the schema that wrote it, but nothing is registered in the schema registry of this home. "
            "Register the schema, or set schema_registry_url to the address of the registry that has it."
        )
    name = name_of(frame)
    if frame[:1] == ID_BYTE:
        schema = state.schema(int(name))
    else:
        schema = next((version.schema for version in state.uses_of_guid(name)), None)
    if schema is None:
        return None
    try:
        references = tuple((each.name, each.text) for each in resolve(state, schema))
    except RegistryError as error:
        raise RegistryAway(f"Schema {name} of the schema registry of this home cannot be read: {error}") from None
    return WriterSchema(schema.type, schema.text, references)
