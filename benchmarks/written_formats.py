"""The same page views in each format that a source can have: schemas, declarations, and the bytes of records."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import fastavro
import orjson
from google.protobuf import message_factory

from views.formats.framing import frame_of_id
from views.formats.protobuf_schema import compiled, pool_of
from views.source import Source

URLS, USERS = 3_000, 50_000
FIELDS = (
    ("event_id", "string"), ("event_time", "timestamp"), ("user_id", "string"), ("url", "string"), ("ms", "double"),
    ("status", "bigint"), ("bytes", "bigint"), ("referrer", "string"), ("agent", "string"), ("ip", "string"),
)  # fmt: skip
AVRO_TYPES = {"string": "string", "double": "double", "bigint": "long", "timestamp": "timestamp-micros"}
JSON_TYPES = {"string": "string", "double": "number", "bigint": "integer", "timestamp": "date-time"}
PROTOBUF_TYPES = {
    "string": "string", "double": "double", "bigint": "int64", "timestamp": "google.protobuf.Timestamp",
}  # fmt: skip
FIRST_MESSAGE = b"\x00"
"""What follows the frame of Protobuf: the record is the first message of its schema."""
VIEW = """
{name} = View(
    "{name}_reference", source={name}_source, grain="1h", keys={{"url": "url"}},
    answers={{"hits": Count(), "users": Distinct("user_id"), "ms": Sum("ms"), "latency": Quantiles("ms")}},
)
"""
"""That of reference_view.py, of another source."""


@dataclass(frozen=True)
class Format:
    """A format, the type of its schemas in the registry (none: it has no schema there), and its schema."""

    name: str
    registry_type: str = ""
    schema: str = ""

    @property
    def source(self) -> Source:
        """The source whose records are of this format."""
        if not self.registry_type:
            return Source(self.name, fields=", ".join(f"{name} {kind}" for name, kind in FIELDS))
        return Source(self.name, format=self.name, reader_schema=self.schema)

    def declared(self) -> str:
        """The source and its view, as a file of views has them."""
        given = f"fields={self.source.fields!r}" if not self.registry_type else f"reader_schema={self.schema!r}"
        made = f"{self.name}_source = Source({self.name!r}, format={self.name!r}, {given})"
        return made + VIEW.format(name=self.name)

    def writer(self, schema_id: int) -> Callable[[dict[str, Any]], bytes]:
        """Turns an event into a record, framed as Confluent's serializers do it."""
        frame = frame_of_id(schema_id)
        match self.name:
            case "avro":
                parsed = fastavro.parse_schema(json.loads(self.schema))

                def avro(event: dict[str, Any]) -> bytes:
                    file = io.BytesIO()
                    file.write(frame)
                    fastavro.schemaless_writer(file, parsed, event)
                    return file.getvalue()

                return avro
            case "protobuf":
                made = message_factory.GetMessageClass(pool_of(compiled(self.schema)).FindMessageTypeByName("PageView"))
                return lambda event: frame + FIRST_MESSAGE + made(**event).SerializeToString()
            case "json_schema":
                return lambda event: frame + orjson.dumps(event)
        return orjson.dumps


def event(number: int) -> dict[str, Any]:
    """A page view, all of one hour: states are few, and what is measured is decoding."""
    return {
        "event_id": f"e{number:012}",
        "event_time": datetime(2026, 5, 2, 12, number % 60, number // 60 % 60, tzinfo=UTC),
        "user_id": f"user-{number * 7919 % USERS}",
        "url": f"/page/{number * 104_729 % URLS}",
        "ms": number % 400 + 0.5,
        "status": 200,
        "bytes": number % 100_000,
        "referrer": "https://example.org/",
        "agent": "Mozilla/5.0 (X11; Linux x86_64)",
        "ip": f"10.0.{number % 250}.{number % 251}",
    }


def _avro() -> str:
    def type_of(kind: str) -> Any:
        return {"type": "long", "logicalType": AVRO_TYPES[kind]} if kind == "timestamp" else AVRO_TYPES[kind]

    fields = [{"name": name, "type": type_of(kind)} for name, kind in FIELDS]
    return json.dumps({"type": "record", "name": "PageView", "fields": fields})


def _json_schema() -> str:
    def type_of(kind: str) -> dict[str, str]:
        is_time = kind == "timestamp"
        return {"type": "string", "format": JSON_TYPES[kind]} if is_time else {"type": JSON_TYPES[kind]}

    return json.dumps({"title": "PageView", "type": "object", "properties": {n: type_of(k) for n, k in FIELDS}})


def _protobuf() -> str:
    fields = "".join(
        f"{PROTOBUF_TYPES[kind]} {name} = {number}; " for number, (name, kind) in enumerate(FIELDS, start=1)
    )
    return f'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message PageView {{ {fields}}}'


FORMATS = (
    Format("json"),
    Format("json_schema", "JSON", _json_schema()),
    Format("avro", "AVRO", _avro()),
    Format("protobuf", "PROTOBUF", _protobuf()),
)
