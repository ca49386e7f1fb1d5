"""Records as watches see them: valid events with typed fields, and the JSON of a match."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
from confluent_kafka import Message

from master_dataset.errors import InvalidEvent
from master_dataset.events.envelope import parse_json
from serving_layer.alerts.notifications import iso
from views.reading import typed_event
from views.source import Source
from views.strict_json import dump_decimal
from views.watch import Watch

MAX_EVENT_BYTES = 16_384
"""A larger event is pushed without its content."""


def read_event(
    source: Source, message: Message, validate: Any, base: int = 0
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """A record as its JSON and as the typed fields that conditions see; None if it is not a valid event.

    `base` is what offsets of its partition are raised by.
    """
    value: Any = message.value()
    try:
        event = parse_json(value or b"")
        validate(event)
    except InvalidEvent:
        return None
    row = typed_event(source.schema, event)
    if row.get(source.id_field) is None:
        row[source.id_field] = f"{message.topic()}/{message.partition()}/{int(message.offset() or 0) + base}"
    if row.get(source.time_field) is None:
        row[source.time_field] = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
    return event, row


def match_json(
    watch: Watch, source: Source, message: Message, event: dict[str, Any], row: dict[str, Any], base: int = 0
) -> bytes:
    """What subscribers of a watch receive."""
    at: Any = row[source.time_field]
    value: Any = message.value()
    is_large = len(value) > MAX_EVENT_BYTES
    shown = {
        "watch": watch.name,
        "source": source.name,
        "partition": message.partition(),
        "offset": int(message.offset() or 0) + base,
        "event_id": row[source.id_field],
        "event_time": iso(at.timestamp()),
        "event": None if is_large else event,
        "too_large": is_large,
    }
    return orjson.dumps(shown, dump_decimal)
