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
STRINGS = ("name", "fields", "topic", "format", "id_field", "time_field", "doc")
LARGEST_LONG = 2**63 - 1  # in which Kafka keeps retention, in milliseconds and bytes
MS_PER_HOUR = 3_600_000
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
        """What is wrong with it; only the first problem is reported. Later checks rely on earlier ones."""
        for attribute in STRINGS:
            value = getattr(self, attribute)
            if not isinstance(value, str):
                yield f"{attribute} is {value!r}; it should be a string."
        if not NAME.fullmatch(self.name):
            yield "a name consists of lower-case letters, digits and underscores, and begins with a letter."
        if not TOPIC.fullmatch(self.topic) or self.topic in (".", ".."):
            yield f"{self.topic!r} is not a topic name; Kafka allows letters, digits, '.', '_' and '-'."
        if kafka_name(self.topic) == kafka_name(self.dead_topic):
            yield (
                f"its topic {self.topic!r} is also its dead-letter topic {self.dead_topic!r} (Kafka does not tell '.' "
                "from '_'). Choose another topic."
            )
        if self.format not in FORMATS:
            yield f"the format {self.format!r} is not known. There are: {', '.join(FORMATS)}."
        try:
            fields = {field.name: field.type for field in self.schema}
        except DeclarationError as error:
            yield f"fields: {error}"
            return
        yield from self._check_role("id_field", self.id_field, fields, "string")
        yield from self._check_role("time_field", self.time_field, fields, "timestamp")
        yield from self._check_topic_settings()

    def _check_topic_settings(self) -> Iterator[str]:
        if type(self.partitions) is not int or not 1 <= self.partitions <= 10_000:
            yield f"partitions is {self.partitions!r}; it should be a whole number, 1 to 10000."
        hours, size = self.retention_hours, self.retention_bytes
        if hours is not None and not (type(hours) in (int, float) and 1 <= hours * MS_PER_HOUR < LARGEST_LONG):
            yield f"retention_hours is {hours!r}; it should be a positive number of hours, or None for no limit."
        if size is not None and (type(size) is not int or not 0 < size <= LARGEST_LONG):
            yield f"retention_bytes is {size!r}; it should be a positive whole number of bytes, or None for no limit."
        compacted: object = self.compacted
        if not isinstance(compacted, bool):
            yield f"compacted is {compacted!r}; it should be True or False."

    def _check_role(self, role: str, name: str, fields: dict[str, FieldType], kind: str) -> Iterator[str]:
        if name not in fields:
            yield f"{role} is {name!r}, which is not among its fields {sorted(fields)}. Add '{name} {kind}' to fields."
        elif fields[name].kind != kind:
            yield f"{role} {name!r} has the type {fields[name].ddl()}; it should be {kind}."


def kafka_name(topic: str) -> str:
    """What Kafka compares: it makes no topic whose name differs from another's only in '.' and '_'."""
    return topic.replace(".", "_")
