"""Records that come with a schema, or with the name of one: framed as Confluent's serializers do it, and back."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from infra.rest.problems import Problem
from master_dataset.collector.context import Collector
from master_dataset.collector.kafka_rest.schema_codecs import Codec, Misfit, codec_of, record_name
from master_dataset.collector.permissions import Permissions
from master_dataset.collector.schema_registry.context import WRITE, check_references, version_at
from master_dataset.collector.schema_registry.requests import check_subject_name
from master_dataset.registry.errors import RegistryError, invalid_schema, invalid_version, schema_not_found, shown
from master_dataset.registry.records import MAX_INT32, SchemaVersion
from master_dataset.registry.references import resolve
from master_dataset.registry.registry import Registry, Submitted
from master_dataset.registry.schemas import Schema
from views.errors import DeclarationError
from views.formats.framing import frame_of_id, split

MAX_CODECS = 200
DEADLINE_S = 90.0
CONFLICT = 409
TOPIC_NAME, RECORD_NAME, TOPIC_RECORD_NAME = "TOPIC_NAME", "RECORD_NAME", "TOPIC_RECORD_NAME"
STRATEGIES = (TOPIC_NAME, RECORD_NAME, TOPIC_RECORD_NAME)


@dataclass(frozen=True)
class SchemaChoice:
    """What a request says about the schema of its keys or values. `part` is `key` or `value`; no type: the schema's."""

    type: str | None
    topic: str
    part: str
    text: Any = None
    id: Any = None
    subject: Any = None
    version: Any = None
    strategy: Any = None


@dataclass(frozen=True)
class SchemaWriter:
    """Encodes by one schema."""

    version: SchemaVersion
    codec: Codec

    @property
    def id(self) -> int:
        """The id of the schema."""
        return self.version.id

    def encode(self, value: Any, where: str) -> bytes:
        """The framed bytes. The problem 422 for data that does not fit the schema."""
        try:
            return frame_of_id(self.id) + self.codec.encode(value)
        except Misfit as error:
            raise Problem(
                422,
                "data-misfits",
                f"The data at {where} does not fit schema {self.id} ({self.version.schema.type}): {error}. Nothing was "
                "stored.",
                where=where,
                reason=f"the data does not fit schema {self.id} ({self.version.schema.type}): {error}",
            ) from None


class EmbeddedSchemas:
    """Finds, registers and remembers the schemas that records come with. For one event loop."""

    def __init__(self, collector: Collector, registry: Registry | None) -> None:
        self._collector, self._registry = collector, registry
        self._codecs: OrderedDict[int, tuple[Schema, Codec]] = OrderedDict()

    @property
    def registry(self) -> Registry:
        """The registry, or the problem 422 where it is off."""
        if self._registry is None:
            raise Problem(422, "invalid-schema", "There is no schema registry here (registry_enabled is false).")
        return self._registry

    async def writer(self, request: Request, allowed: Permissions, choice: SchemaChoice) -> SchemaWriter:
        """What encodes by the schema that a request chose. A new schema is registered, if the key may do that."""
        version = await self._version(request, allowed, choice)
        if choice.type not in (None, version.schema.type):
            raise invalid_schema(
                f"Schema {version.id} is of the type {version.schema.type}, and the {choice.part} of {choice.type}."
            )
        return SchemaWriter(version, await self._codec(version.id, version.schema))

    async def _version(self, request: Request, allowed: Permissions, choice: SchemaChoice) -> SchemaVersion:
        state = self.registry.state
        if choice.id is not None:
            if type(choice.id) is not int or not 0 < choice.id <= MAX_INT32:
                raise invalid_schema(f"A schema id is a whole number; found {shown(choice.id)}.")
            uses = [each for each in state.uses_of(choice.id) if allowed.allows_subject(each.subject)]
            if not uses:
                raise schema_not_found(str(choice.id))
            return await self._use(choice, uses)
        if choice.text is not None:
            return await self._registered(request, allowed, choice)
        subject = await self._subject(choice)
        self._check_subject(allowed, subject)
        number = choice.version
        if number is not None and number != "latest" and (type(number) is not int or not 0 < number <= MAX_INT32):
            raise invalid_version(number)
        return version_at(state, subject, number if type(number) is int else None, deleted=False)

    async def _registered(self, request: Request, allowed: Permissions, choice: SchemaChoice) -> SchemaVersion:
        if not isinstance(choice.text, str) or not choice.text.strip():
            raise invalid_schema(f"A schema is a text; found {shown(choice.text)}.")
        schema = Schema(choice.text, choice.type or "AVRO")
        check_references(allowed, schema.references)
        subject = await self._subject(choice, schema)
        self._check_subject(allowed, subject)
        known = await self.registry.find(subject, schema, normalize=False, deleted=False)
        if known is not None:
            return known
        self._collector.allow(request, *WRITE)
        return await self.registry.register(subject, Submitted(schema), normalize=False)

    def _check_subject(self, allowed: Permissions, subject: Any) -> None:
        if not isinstance(subject, str):
            raise invalid_schema(f"A subject is a text; found {shown(subject)}.")
        allowed.check_subject(check_subject_name(subject))

    async def _use(self, choice: SchemaChoice, uses: list[SchemaVersion]) -> SchemaVersion:
        """The use of an id by the subject that a request names, or else by the subject of the topic if it is there."""
        is_named = choice.subject is not None or choice.strategy is not None
        subject = await self._subject(choice, uses[0].schema) if is_named else f"{choice.topic}-{choice.part}"
        found = next((each for each in uses if each.subject == subject), None)
        if found is None and is_named:
            raise RegistryError(40401, f"The subject {shown(subject)} has no schema with the id {choice.id}.")
        return found or uses[0]

    async def _subject(self, choice: SchemaChoice, schema: Schema | None = None) -> Any:
        """The subject that a request names, itself or by a strategy. A name of a record is that of the schema."""
        if choice.subject is not None:
            return choice.subject
        strategy = TOPIC_NAME if choice.strategy is None else choice.strategy
        if strategy not in STRATEGIES:
            raise invalid_schema(f"subject_name_strategy is {shown(strategy)}; there are {', '.join(STRATEGIES)}.")
        if strategy == TOPIC_NAME:
            return f"{choice.topic}-{choice.part}"
        if schema is None:
            raise invalid_schema(f"{strategy} needs a schema or an id, which name a record.")
        try:
            name = await asyncio.to_thread(record_name, schema.type, schema.text, self._texts(schema))
        except (ValueError, DeclarationError) as error:
            raise invalid_schema(f"{strategy} needs a schema with a name: {error}") from None
        return name if strategy == RECORD_NAME else f"{choice.topic}-{name}"

    def _texts(self, schema: Schema) -> tuple[tuple[str, str], ...]:
        """The names and texts of what a schema refers to."""
        return tuple((each.name, each.text) for each in resolve(self.registry.state, schema))

    async def _codec(self, schema_id: int, schema: Schema) -> Codec:
        known = self._codecs.get(schema_id)
        if known is None or known[0] != schema:
            try:
                known = schema, await asyncio.to_thread(codec_of, schema.type, schema.text, self._texts(schema))
            except (ValueError, DeclarationError) as error:
                raise invalid_schema(f"Schema {schema_id} cannot be used: {error}") from None
            self._codecs[schema_id] = known
            if len(self._codecs) > MAX_CODECS:
                self._codecs.popitem(last=False)
        self._codecs.move_to_end(schema_id)
        return known[1]

    def reader(self, type: str, loop: asyncio.AbstractEventLoop) -> Callable[[bytes], Any]:
        """What decodes framed bytes in another thread than the loop's. ValueError says why it cannot."""
        codecs: dict[int, Codec] = {}

        def read(data: bytes) -> Any:
            found = split(data)
            if found is None:
                raise ValueError("it has no schema id before it")
            schema_id = int.from_bytes(found.frame[1:], "big")
            if schema_id not in codecs:
                waiting = asyncio.run_coroutine_threadsafe(self._known(schema_id, type), loop)
                try:
                    codecs[schema_id] = waiting.result(DEADLINE_S)
                except RegistryError as error:
                    raise ValueError(str(error).rstrip(".")) from None
            return codecs[schema_id].decode(found.payload)

        return read

    async def _known(self, schema_id: int, type: str) -> Codec:
        schema = self.registry.state.schema(schema_id)
        if schema is None:
            raise ValueError(f"schema id {schema_id} is unknown to the registry")
        if schema.type != type:
            raise ValueError(f"schema {schema_id} is of the type {schema.type}")
        return await self._codec(schema_id, schema)


def schema_problem(error: RegistryError) -> Problem:
    """A refusal of the registry, in a request whose records need a schema."""
    if error.status == CONFLICT:
        return Problem(409, "schema-incompatible", str(error))
    return Problem(422, "invalid-schema", f"{error} Nothing was stored.", reason=str(error))
