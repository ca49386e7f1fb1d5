"""Records as watches see them, and the JSON of a match."""

from __future__ import annotations

from typing import Any

import orjson
from confluent_kafka import Message

from master_dataset.events.raw_records import RawRecord
from master_dataset.reading.event_reader import ReadEvent
from serving_layer.alerts.notifications import iso
from views.strict_json import dump_decimal, dump_json
from views.watch import Watch

MAX_EVENT_BYTES = 16_384
"""A larger event is pushed without its content."""


def record_of(message: Message, base: int = 0) -> RawRecord:
    """A record as Kafka gives it. `base` is what offsets of its partition are raised by."""
    value, headers = message.value(), message.headers()
    offset = int(message.offset() or 0) + base
    given: Any = headers or ()
    return RawRecord(int(message.partition() or 0), offset, message.timestamp()[1], value, tuple(given))


def match_json(watch: Watch, record: RawRecord, event: ReadEvent) -> bytes:
    """What subscribers of a watch receive."""
    source = watch.source
    at: Any = event.fields[source.time_field]
    is_large = len(record.value or b"") > MAX_EVENT_BYTES or len(dump_json(event.shown)) > MAX_EVENT_BYTES
    shown = {
        "watch": watch.name,
        "source": source.name,
        "partition": record.partition,
        "offset": record.offset,
        "event_id": event.fields[source.id_field],
        "event_time": iso(at.timestamp()),
        "event": None if is_large else event.shown,
        "too_large": is_large,
    }
    return orjson.dumps(shown, dump_decimal)
