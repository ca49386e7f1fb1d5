"""A key or value as REST Proxy v3 writes it: read, and encoded by its schema where it has one."""

from __future__ import annotations

import base64
import binascii
from typing import Any, NamedTuple

from starlette.requests import Request

from master_dataset.collector.bodies import invalid_body
from master_dataset.collector.context import Collector
from master_dataset.collector.kafka_rest.embedded_schemas import (
    STRATEGIES,
    TOPIC_NAME,
    EmbeddedSchemas,
    SchemaChoice,
    SchemaWriter,
)
from master_dataset.collector.permissions import Permissions
from master_dataset.registry.records import MAX_INT32
from views.strict_json import dump_json

TYPES = ("BINARY", "JSON", "STRING")
SCHEMA_TYPES = {"AVRO": "AVRO", "JSONSCHEMA": "JSON", "PROTOBUF": "PROTOBUF"}
"""A type of REST Proxy v3 -> that of the registry."""
TYPE_OF = {ours: theirs for theirs, ours in SCHEMA_TYPES.items()}
TEXTS, NUMBERS = ("schema", "subject", "subject_name_strategy"), ("schema_id", "schema_version")
MEMBERS = {"type", "data", *TEXTS, *NUMBERS}


class V3Data(NamedTuple):
    """A key or value as a client wrote it. `data` is bytes, or with a choice the JSON that its schema describes."""

    type: str
    data: Any
    choice: SchemaChoice | None = None


class Encoded(NamedTuple):
    """The bytes of a key or value, and what the reply says of them."""

    data: bytes | None
    members: dict[str, Any] | None


def read_v3_data(given: Any, topic: str, part: str) -> V3Data | None:
    """The key or value of a parsed record, None where there is none. Raises the problem 422 for what it is not."""
    if given is None:
        return None
    if not isinstance(given, dict):
        raise invalid_body(part, 'an object like {"type": "JSON", "data": 1} is expected')
    given = {name: value for name, value in given.items() if value is not None}
    if unknown := given.keys() - MEMBERS:
        raise invalid_body(f"{part}.{min(unknown)}", f"there are {', '.join(sorted(MEMBERS))}")
    kind, data = given.get("type"), given.get("data")
    if kind is None or (isinstance(kind, str) and kind in SCHEMA_TYPES):
        return V3Data(kind or "", data, _choice(given, topic, part))
    if kind not in TYPES:
        raise invalid_body(f"{part}.type", f"the types are {', '.join((*TYPES, *SCHEMA_TYPES))}")
    if others := given.keys() - {"type", "data"}:
        raise invalid_body(f"{part}.{min(others)}", f"data of the type {kind} has no schema")
    return V3Data(kind, None if data is None else _plain(kind, data, f"{part}.data"))


def _plain(kind: str, data: Any, where: str) -> bytes:
    if kind == "JSON":
        return dump_json(data)
    if not isinstance(data, str):
        raise invalid_body(where, f"data of the type {kind} is a string")
    return data.encode() if kind == "STRING" else from_base64(data, where)


def from_base64(text: str, where: str) -> bytes:
    """The bytes, or the problem 422."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid_body(where, "this is not base64") from None


def _choice(given: dict[str, Any], topic: str, part: str) -> SchemaChoice:
    """The schema that a client chose: its text, its id, a version of a subject, or the latest of a subject."""
    for name in TEXTS:
        if name in given and not (isinstance(given[name], str) and given[name]):
            raise invalid_body(f"{part}.{name}", "a text is expected")
    for name in NUMBERS:
        if name in given and not (type(given[name]) is int and 0 < given[name] <= MAX_INT32):
            raise invalid_body(f"{part}.{name}", "a whole number from 1 on is expected")
    chosen = [name for name in ("schema", *NUMBERS) if name in given]
    if len(chosen) > 1:
        raise invalid_body(f"{part}.{chosen[1]}", f"it says which schema, and so does {chosen[0]}; leave out one")
    if "schema" in given and "type" not in given:
        raise invalid_body(f"{part}.type", f"a schema needs its type: {', '.join(SCHEMA_TYPES)}")
    if "type" in given and "schema" not in given:
        raise invalid_body(
            f"{part}.type", f"{given['type']} needs schema; leave it out where the registry has the schema"
        )
    strategy = given.get("subject_name_strategy")
    if strategy is not None:
        if "subject" in given:
            raise invalid_body(f"{part}.subject_name_strategy", "it gives the subject its name, which is given already")
        if strategy not in STRATEGIES:
            raise invalid_body(f"{part}.subject_name_strategy", f"there are {', '.join(STRATEGIES)}")
        if strategy != TOPIC_NAME and chosen not in (["schema"], ["schema_id"]):
            raise invalid_body(
                f"{part}.subject_name_strategy", f"{strategy} needs schema or schema_id, which name a record"
            )
    return SchemaChoice(
        SCHEMA_TYPES.get(given.get("type", "")),
        topic,
        part,
        text=given.get("schema"),
        id=given.get("schema_id"),
        subject=given.get("subject"),
        version=given.get("schema_version"),
        strategy=strategy,
    )


class V3Encoder:
    """Encodes what a part of a request has. A schema is looked up once, however many records have it."""

    def __init__(self, collector: Collector, schemas: EmbeddedSchemas, request: Request, allowed: Permissions) -> None:
        self._collector, self._schemas, self._request, self._allowed = collector, schemas, request, allowed
        self._writers: dict[SchemaChoice, SchemaWriter] = {}

    async def encode(self, given: V3Data | None, part: str) -> Encoded:
        """The bytes of a key or value of a record. A new schema is registered, if the key may do that.

        RegistryError for a schema that is not found or not taken, the problem 422 for data that does not fit.
        """
        if given is None:
            return Encoded(None, None)
        if given.choice is None:
            return Encoded(given.data, {"type": given.type, "size": len(given.data or b"")})
        writer = self._writers.get(given.choice)
        if writer is None:
            writer = await self._schemas.writer(self._request, self._allowed, given.choice)
            self._writers[given.choice] = writer
        data = None  # null is a tombstone, whatever the schema
        if given.data is not None:
            data = await self._collector.parsing.run(writer.encode, given.data, f"{part}.data")
        version = writer.version
        return Encoded(
            data,
            {
                "type": TYPE_OF[version.schema.type],
                "subject": version.subject,
                "schema_id": version.id,
                "schema_version": version.version,
                "size": len(data or b""),
            },
        )
