"""A source: a Kafka topic whose events have a declared schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from views.errors import DeclarationError, SourceError
from views.field_types import Field, FieldType, is_usable_name, parse_fields, with_names
from views.formats.framing import FRAMINGS, REGISTRY
from views.reading import MAX_ALIASES, rules_of, with_aliases

if TYPE_CHECKING:
    from views.formats.avro_schema import AvroReader
    from views.formats.protobuf_schema import ProtobufReader

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
FORMATS = ("json", "json_schema", "avro", "protobuf")
CLOUDEVENTS, CLOUDEVENTS_BY_SOURCE = "cloudevents", "cloudevents_by_source"
ENVELOPES = (CLOUDEVENTS, CLOUDEVENTS_BY_SOURCE)
STRINGS = (
    "name", "fields", "topic", "format", "reader_schema", "framing", "envelope", "id_field", "time_field", "key_field",
    "doc",
)  # fmt: skip
KEY_TYPES = ("string", "tinyint", "smallint", "int", "bigint")
LARGEST_LONG = 2**63 - 1  # in which Kafka keeps retention, in milliseconds and bytes
MAX_VERSION = 100_000
MS_PER_HOUR = 3_600_000
TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,240}")


@dataclass(frozen=True)
class Source:
    """Where events come from and what they look like.

    `fields` is Spark DDL of the JSON object in each message. `id_field` and `time_field` name two of them, of type
    string and timestamp; an event may lack them: its id is then `topic/partition/offset`, its time Kafka's timestamp.
    `key_field` names the field whose value is the Kafka key, so that all events of one user share a partition, in their
    order. Without it, and for an event that lacks it, the id is the key.

        web = Source("web", fields="event_id string, event_time timestamp, user_id string, url string")

    A field may be required (`url string NOT NULL`), have a default (`ms bigint DEFAULT 0`), and come under other names:
    `aliases={"user_id": ("user", "uid")}`. How events are read may change while everything runs: `version` counts that.

    Records of another format have their fields from the schema that they are read by, and `fields` is left out. The
    schema is a text, or the absolute path of its file. What schema wrote a record says its frame (`views/formats`), or
    with framing="none" it is the reader schema itself.

        orders = Source("orders", format="avro", reader_schema=Path(__file__).with_name("orders.avsc"))

    With envelope="cloudevents" records of Kafka may be CloudEvents, whose `id` is the event id; where ids are unique
    for each `source` attribute only, it is "cloudevents_by_source".
    """

    name: str
    fields: str = ""
    topic: str = ""
    format: str = "json"
    id_field: str = "event_id"
    time_field: str = "event_time"
    key_field: str = ""
    partitions: int = 3
    retention_hours: float | None = 7 * 24
    retention_bytes: int | None = None
    compacted: bool = False
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    reader_schema: str | Path = ""
    framing: str = ""
    envelope: str = ""
    version: int = 1
    """Of its reading: what decides how a record is judged and read. A change of that needs the next number."""
    doc: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.topic:
            object.__setattr__(self, "topic", self.name)
        if isinstance(self.reader_schema, Path):
            object.__setattr__(self, "reader_schema", _read_schema(self.name, self.reader_schema))
        if self.format != "json" and not self.framing:
            object.__setattr__(self, "framing", REGISTRY)
        for problem in self._problems():
            raise SourceError(f"Source {self.name!r}: {problem}")

    @property
    def dead_topic(self) -> str:
        """Where its invalid records go."""
        return f"{self.name}.dead"

    @cached_property
    def schema(self) -> tuple[Field, ...]:
        """The declared fields, parsed, with their aliases; or those of the reader schema."""
        if self.format == "json":
            return with_aliases(parse_fields(self.fields), self.aliases)
        if self.format == "json_schema":
            from views.formats.json_schema import json_schema_fields

            return json_schema_fields(str(self.reader_schema))
        return self.protobuf.fields if self.format == "protobuf" else self.avro.fields

    @cached_property
    def avro(self) -> AvroReader:
        """The reader schema of an Avro source."""
        from views.formats.avro_schema import avro_reader

        return avro_reader(str(self.reader_schema))

    @cached_property
    def protobuf(self) -> ProtobufReader:
        """The reader schema of a Protobuf source."""
        from views.formats.protobuf_schema import protobuf_reader

        return protobuf_reader(str(self.reader_schema))

    @cached_property
    def reader_meaning(self) -> Any:
        """What the reader schema means beyond the fields and their types, however it is written; None: nothing."""
        if self.format == "avro":
            from views.formats.avro_evolution import bytes_of, meaning_of

            reads = meaning_of(str(self.reader_schema))
            return {"reads": reads} if self.is_framed else {"reads": reads, "bytes": bytes_of(str(self.reader_schema))}
        if self.format == "protobuf":
            from views.formats import protobuf_evolution

            return {"reads": protobuf_evolution.meaning_of(self.protobuf)}
        return None

    @property
    def is_framed(self) -> bool:
        """Whether each record says which schema wrote it."""
        return self.framing == REGISTRY

    @property
    def needs_writer_schemas(self) -> bool:
        """Whether a record can be read only with the schema that it names. JSON says by itself what it is."""
        return self.is_framed and self.format != "json_schema"

    @property
    def needs_headers(self) -> bool:
        """Whether a record can be read only with its headers."""
        return self.is_framed or bool(self.envelope)

    def as_json(self) -> Source:
        """The same source with its events as JSON: what generated events are written as."""
        if self.format == "json":
            return replace(self, envelope="") if self.envelope else self
        fields = ", ".join(f"`{each.name}` {each.type.ddl()}" for each in self.schema)
        return replace(self, format="json", fields=fields, reader_schema="", framing="")

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        """The names under which the value of its key field may come; its own first. Empty: it has no key field."""
        return next((each.names for each in self.schema if each.name == self.key_field), ())

    @property
    def reading(self) -> dict[str, Any]:
        """What decides how its records are judged and read, as JSON has it; `with_reading` takes it."""
        schema = {} if self.format == "json" else {"reader_schema": self.reader_schema, "framing": self.framing}
        envelope = {"envelope": self.envelope} if self.envelope else {}
        return {
            "version": self.version,
            "fields": self.fields,
            "aliases": {path: list(names) for path, names in self.aliases.items()},
            "format": self.format,
            "id_field": self.id_field,
            "time_field": self.time_field,
            **schema,
            **envelope,
        }

    @property
    def meaning(self) -> dict[str, Any]:
        """What its reading means, however it was written: with the fields by path, in no order, with types and rules.

        The order inside arrays and maps is part of their types, as `views/evolution.py` has it.
        """
        others = {
            name: value for name, value in self.reading.items() if name not in ("fields", "aliases", "reader_schema")
        }
        if self.reader_meaning is not None:
            others["reader_schema"] = self.reader_meaning
        fields = {
            path: "struct" if each.type.kind == "struct" else each.type.ddl() for path, each in with_names(self.schema)
        }
        return {**others, "fields": fields, "rules": rules_of(self.schema)}

    def with_reading(self, reading: Mapping[str, Any]) -> Source:
        """The same source with another reading. DeclarationError where that is none.

        Its key field is that under any of its names; events have their ids as keys where the reading has none of them.
        """
        try:
            aliases = {str(path): tuple(map(str, names)) for path, names in dict(reading["aliases"]).items()}
            given = {name: reading[name] for name in ("version", "fields", "format", "id_field", "time_field")}
            given |= {name: reading.get(name, "") for name in ("reader_schema", "framing", "envelope")}
        except (KeyError, TypeError, ValueError) as error:
            raise DeclarationError(f"This is not a reading of a source ({error!r}): {str(reading)[:200]}") from None
        found = replace(self, aliases=aliases, key_field="", **given)
        usable = (
            each.name
            for each in found.schema
            if set(self.key_names).intersection(each.names)
            and each.type.kind in KEY_TYPES
            and not (self.compacted and each.name != found.id_field)
        )
        key_field = next(usable, "")
        return replace(found, key_field=key_field) if key_field else found

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
            return
        yield from self._check_format()
        yield from self._check_aliases()
        try:
            fields = {field.name: field.type for field in self.schema}
        except DeclarationError as error:
            yield f"{'fields' if self.format == 'json' else 'reader_schema'}: {error}"
            return
        yield from self._check_role("id_field", self.id_field, fields, "string")
        yield from self._check_role("time_field", self.time_field, fields, "timestamp")
        yield from self._check_roles_alone()
        yield from self._check_key_field(fields)
        yield from self._check_topic_settings()

    def _check_aliases(self) -> Iterator[str]:
        """Their shape; whether the fields are there is known when they are parsed."""
        given: object = self.aliases
        if not isinstance(given, Mapping):
            yield f"aliases is {given!r}; it should be a dict like {{'user_id': ('user', 'uid')}}."
            return
        for path, names in given.items():
            if not isinstance(path, str) or not isinstance(names, tuple) or not 0 < len(names) <= MAX_ALIASES:
                yield f"aliases has {path!r}: {names!r}; it should be a tuple of 1 to {MAX_ALIASES} names."
                return
            for name in names:
                if not isinstance(name, str) or not is_usable_name(name):
                    yield f"aliases: {name!r} of {path!r} cannot be the name of a field."

    def _check_roles_alone(self) -> Iterator[str]:
        """The id and the time have rules of their own for records without them."""
        for each in self.schema:
            if each.name in (self.id_field, self.time_field):
                role = "id_field" if each.name == self.id_field else "time_field"
                if each.aliases:
                    yield f"{role} {each.name!r} has aliases; declare it under the name that it has."
                if each.default is not None:
                    yield f"{role} {each.name!r} has a default; a record without it has one already."

    def _check_format(self) -> Iterator[str]:
        """What belongs to one format is refused for another: it would do nothing."""
        if self.envelope and self.envelope not in ENVELOPES:
            yield f"envelope is {self.envelope!r}; there are: {', '.join(ENVELOPES)}."
        elif self.envelope and self.format != "json":
            yield f"envelope={self.envelope!r} is for format='json': what is in the envelope is read as JSON."
        if self.format == "json":
            if self.reader_schema or self.framing:
                yield "reader_schema and framing are for the other formats; with format='json' declare fields."
        elif self.aliases:
            yield f"with format={self.format!r} the reader schema has the aliases of its fields; leave aliases out."
        elif self.fields:
            yield f"with format={self.format!r} the fields are those of reader_schema; leave fields out."
        elif not self.reader_schema:
            yield (
                f"format={self.format!r} needs reader_schema: the schema to read by, as a text or the absolute path of "
                "its file."
            )
        elif self.framing not in FRAMINGS:
            yield f"framing is {self.framing!r}; there are: {', '.join(FRAMINGS)}."

    def _check_topic_settings(self) -> Iterator[str]:
        if type(self.version) is not int or not 1 <= self.version <= MAX_VERSION:
            yield f"version is {self.version!r}; it should be a whole number, 1 to {MAX_VERSION}."
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

    def _check_key_field(self, fields: dict[str, FieldType]) -> Iterator[str]:
        name = self.key_field
        if not name:
            return
        if name not in fields:
            yield f"key_field is {name!r}, which is not among its fields {sorted(fields)}."
        elif fields[name].kind not in KEY_TYPES:
            yield f"key_field {name!r} has the type {fields[name].ddl()}; it should be one of {', '.join(KEY_TYPES)}."
        elif self.compacted and name != self.id_field:
            yield (
                f"it is compacted, and key_field is {name!r}: Kafka would keep only the last event of each {name}. "
                "Leave one of them out."
            )

    def _check_role(self, role: str, name: str, fields: dict[str, FieldType], kind: str) -> Iterator[str]:
        if name not in fields:
            remedy = self._remedy(role, name, kind)
            yield f"{role} is {name!r}, which is not among its fields {sorted(fields)}. {remedy}"
        elif fields[name].kind != kind:
            yield f"{role} {name!r} has the type {fields[name].ddl()}; it should be {kind}."

    def _remedy(self, role: str, name: str, kind: str) -> str:
        if self.format == "json":
            return f"Add '{name} {kind}' to fields."
        return (
            f"Name another of type {kind} with {role}=, or add one with the default null to the reader schema: an "
            "event may lack it."
        )


def _read_schema(source: str, path: Path) -> str:
    if not path.is_absolute():
        raise SourceError(
            f"Source {source!r}: reader_schema is the path {str(path)!r}, which depends on where a process runs. Write "
            f"Path(__file__).with_name({path.name!r})."
        )
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(
            f"Source {source!r}: reader_schema is {str(path)!r}, which cannot be read: {error.strerror}."
        ) from None
    except UnicodeDecodeError:
        raise SourceError(f"Source {source!r}: reader_schema is {str(path)!r}, which is not UTF-8 text.") from None


def kafka_name(topic: str) -> str:
    """What Kafka compares: it makes no topic whose name differs from another's only in '.' and '_'."""
    return topic.replace(".", "_")
