"""The registry: parses and checks schemas beside the event loop, and changes the topic by the rules."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, ParamSpec, TypeVar

from infra.rest.problems import Problem
from infra.threads import Threads
from master_dataset.registry import rules
from master_dataset.registry.errors import RegistryError, invalid_schema, shown
from master_dataset.registry.noted_ids import NotedSchemasById, Taken
from master_dataset.registry.records import SchemaVersion
from master_dataset.registry.references import numbered, resolve
from master_dataset.registry.schemas import Schema
from master_dataset.registry.state import State
from master_dataset.registry.topic import Decision, SchemasTopic
from views.formats.writer_schemas import WriterSchema
from views.schemas import InvalidSchema, NamedSchema, ParsedSchema, check, parse

PARSING_THREADS = 2
MAX_WAITING = 30
DEADLINE_S = 10.0
ATTEMPTS = 5
"""How often a registration is checked again because its subject changed meanwhile."""
MAX_PARSED = 500
NO_CHECK, TRANSITIVE = "NONE", "_TRANSITIVE"

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Submitted:
    """A schema as a client sends it, with what it asks for it."""

    schema: Schema
    id: int | None = None
    version: int | None = None


class _Text(NamedTuple):
    """A schema with the texts of all that it refers to: what parsing needs."""

    type: str
    text: str
    references: tuple[NamedSchema, ...]

    @classmethod
    def of(cls, state: State, schema: Schema) -> _Text:
        return cls(schema.type, schema.text, tuple(resolve(state, schema)))


class _Changed(Exception):
    """The subject is another one than the one that was checked."""


class Registry:
    """Answers for one event loop. `topic` has the state."""

    def __init__(self, topic: SchemasTopic, noted: Callable[[], NotedSchemasById] = dict) -> None:
        self.topic = topic
        self._noted = noted
        self._parsing = Threads("parse-schemas", PARSING_THREADS, MAX_WAITING)
        self._parsed: OrderedDict[_Text, ParsedSchema] = OrderedDict()

    @property
    def state(self) -> State:
        """What is known now; the problem 503 until the topic was read."""
        self.topic.check_ready()
        return self.topic.state

    async def register(self, subject: str, submitted: Submitted, *, normalize: bool) -> SchemaVersion:
        """The version of a subject that has this content: one that is there, or a new one."""
        schema = await self.canonical(numbered(self.state, submitted.schema), normalize=normalize)
        taken = await self._taken(schema, submitted.id)
        for _ in range(ATTEMPTS):
            known = self.state.find(subject, schema)
            if known is not None and submitted.id in (None, known.id) and submitted.version in (None, known.version):
                rules.check_not_taken(known, taken)
                return known
            rules.check_mode(self.state, subject, importing=submitted.id is not None)
            checked = _basis(self.state, subject)
            if submitted.id is None:
                await self._check_compatible(subject, schema)

            def decide(state: State, checked: object = checked) -> Decision:
                if _basis(state, subject) != checked:
                    raise _Changed
                for reference in schema.references:
                    if state.version(reference.subject, reference.version) is None:
                        raise invalid_schema(
                            f"No schema reference found for subject {shown(reference.subject)} and version "
                            f"{reference.version}."
                        )
                return rules.register(state, subject, schema, submitted.id, submitted.version, taken)

            try:
                version: SchemaVersion = await self.topic.write(decide)
            except _Changed:
                continue
            return version
        raise RegistryError(50003, f"Subject {shown(subject)} kept changing. Nothing was registered; try again.")

    async def find(self, subject: str, schema: Schema, *, normalize: bool, deleted: bool) -> SchemaVersion | None:
        """The version of a subject that has this content."""
        schema = numbered(self.state, schema)
        known = None if normalize else self.state.find(subject, schema, deleted=deleted)
        if known is not None:  # as it is registered, to the letter
            return known
        canonical = await self.canonical(schema, normalize=normalize)
        return self.state.find(subject, canonical, deleted=deleted)

    async def canonical(self, schema: Schema, *, normalize: bool) -> Schema:
        """The same schema with the text that is stored. Raises 42201 for what is no schema."""
        parsed = await self._parse(_Text.of(self.state, schema))
        return replace(schema, text=parsed.normalized if normalize else parsed.canonical)

    async def formatted(self, schema: Schema, format: str) -> str:
        """The text of a schema in a format that a client asks for."""
        if not format:
            return schema.text
        return (await self._parse(_Text.of(self.state, schema))).formatted(format)

    async def incompatibilities(
        self, subject: str, schema: Schema, older: Sequence[SchemaVersion], *, normalize: bool
    ) -> list[str]:
        """Why a schema could not follow these versions of a subject, by its level; empty if it could."""
        schema = numbered(self.state, schema)
        level = self.state.level(subject)
        if level == NO_CHECK or not older:
            await self.canonical(schema, normalize=normalize)
            return []
        if not level.endswith(TRANSITIVE):
            older = older[-1:]
        texts = [_Text.of(self.state, version.schema) for version in older]
        new = await self._parse(_Text.of(self.state, schema))
        parsed = [await self._parse(text) for text in texts]
        return await self._beside(check, level, new, parsed)

    async def change(self, decide: Callable[[State], Decision]) -> Any:
        """Write what a rule decides, and return its result."""
        return await self.topic.write(decide)

    async def _taken(self, schema: Schema, imported: int | None) -> Taken:
        """The ids that sources noted, as a registration of this schema has to know them."""
        noted = await asyncio.to_thread(self._noted)
        own = WriterSchema(
            schema.type, schema.text, tuple((each.name, each.text) for each in resolve(self.state, schema))
        )
        others = {schema_id for schema_id, found in noted.items() if found != {own}}
        if imported in others and {await self._canonical(each) for each in noted[imported]} == {own.text}:
            others.remove(imported)  # another registry's text for the same schema
        return Taken(max(noted, default=0), frozenset(others))

    async def _canonical(self, noted: WriterSchema) -> str:
        references = tuple(NamedSchema(*each) for each in noted.references)
        try:
            return (await self._parse(_Text(noted.type, noted.text, references))).canonical
        except RegistryError:
            return noted.text

    async def _check_compatible(self, subject: str, schema: Schema) -> None:
        older = self.state.versions_of(subject)
        if reasons := await self.incompatibilities(subject, schema, older, normalize=False):
            detail = "; ".join(reasons)[:4000]
            raise RegistryError(
                409,
                f"Schema being registered is incompatible with an earlier schema for subject {shown(subject)}, "
                f"compatibility level {self.state.level(subject)}; details: [{detail}]",
            )

    async def _parse(self, text: _Text) -> ParsedSchema:
        parsed = self._parsed.get(text)
        if parsed is None:
            parsed = await self._beside(parse, *text)
            self._parsed[text] = parsed
            if len(self._parsed) > MAX_PARSED:
                self._parsed.popitem(last=False)
        self._parsed.move_to_end(text)
        return parsed

    async def _beside(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Do it in a thread: on the event loop, other requests would wait."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self._parsing.run_now(work, *arguments, **named)
        except InvalidSchema as error:
            raise invalid_schema(str(error)) from None
        except TimeoutError:
            raise Problem(
                503, "schema-too-slow", f"The schema was not understood within {DEADLINE_S:g} s.", retry_after_s=5
            ) from None


def _basis(state: State, subject: str) -> object:
    """What a check of compatibility depends on."""
    return state.level(subject), [(version.version, version.id) for version in state.versions_of(subject)]
