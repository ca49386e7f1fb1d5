"""A source: a Kafka topic whose events have a declared schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from views.errors import DeclarationError, SourceError
from views.field_types import Field, FieldType, parse_fields

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
FORMATS = ("json",)
TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,240}")


@dataclass(frozen=True)
class Source:
    """Where events come from and what they look like.

    `fields` is Spark DDL of the JSON object in each message. `id_field` and `time_field` name two of them, of type
    string and timestamp; an event may lack them: its id is then `topic/partition/offset`, its time Kafka's timestamp.

        web = Source("web", fields="event_id string, event_time timestamp, user_id string, url string")
    """

    name: str
    fields: str
    topic: str = ""
    format: str = "json"
    id_field: str = "event_id"
    time_field: str = "event_time"
    partitions: int = 3
    retention_hours: float | None = 7 * 24
    retention_bytes: int | None = None
    compacted: bool = False
    doc: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.topic:
            object.__setattr__(self, "topic", self.name)
        for problem in self._problems():
            raise SourceError(f"Source {self.name!r}: {problem}")

    @property
    def dead_topic(self) -> str:
        """Where its invalid records go."""
        return f"{self.name}.dead"

    @cached_property
    def schema(self) -> tuple[Field, ...]:
        """The declared fields, parsed."""
        return parse_fields(self.fields)

    def _problems(self) -> Iterator[str]:
        if not NAME.fullmatch(self.name):
            yield "a name is lower-case letters, digits and underscores, and begins with a letter."
            return
        if not TOPIC.fullmatch(self.topic) or self.topic in (".", ".."):
            yield f"{self.topic!r} is no topic name; Kafka allows letters, digits, '.', '_' and '-'."
        if self.topic == self.dead_topic:
            yield f"its topic {self.topic!r} is also its dead-letter topic. Choose another topic."
        if self.format not in FORMATS:
            yield f"the format {self.format!r} is not known. There are: {', '.join(FORMATS)}."
        try:
            fields = {field.name: field.type for field in self.schema}
        except DeclarationError as error:
            yield f"fields: {error}"
            return
        names = [field.name.lower() for field in self.schema]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            yield f"fields: {twice} are declared more than once (Spark does not tell upper from lower case)."
        yield from self._check_role("id_field", self.id_field, fields, "string")
        yield from self._check_role("time_field", self.time_field, fields, "timestamp")
        if not 1 <= self.partitions <= 10_000:
            yield f"partitions is {self.partitions}; it should be 1 to 10000."
        for name in ("retention_hours", "retention_bytes"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                yield f"{name} is {value}; it should be positive, or None for no limit."

    def _check_role(self, role: str, name: str, fields: dict[str, FieldType], kind: str) -> Iterator[str]:
        if name not in fields:
            yield f"{role} is {name!r}, which is not among its fields {sorted(fields)}. Add '{name} {kind}' to fields."
        elif fields[name].kind != kind:
            yield f"{role} {name!r} has the type {fields[name].ddl()}; it should be {kind}."
