"""An event on its way in: whether it fits its source, and the key and bytes that Kafka gets.

The Spark expression of a source has the last word on validity. These checks are the same or stricter, so that what was
accepted at the door is never a dead letter later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from master_dataset.errors import InvalidEvent
from master_dataset.events.validator import compile_validator
from views.source import Source
from views.strict_json import dump_decimal, dump_json, parse_json

__all__ = [
    "InvalidEvent",
    "PreparedEvent",
    "compile_validator",
    "dump_json",
    "event_key",
    "new_event_id",
    "parse_json",
    "prepare_event",
]

MAX_NAME_CHARACTERS = 50_000
"""Spark's JSON reader takes no longer names."""


class PreparedEvent(NamedTuple):
    """What Kafka gets, and the event's id."""

    key: bytes
    value: bytes
    event_id: str


def prepare_event(
    source: Source, event: Mapping[str, Any], key: bytes | None = None, *, text: bytes | None = None
) -> PreparedEvent:
    """A valid event as a Kafka record. An id is made where it has none; without `key`, the source says what the key is.

    `text` is what `dump_json` writes for the event, if that is known.
    """
    event_id = event.get(source.id_field)
    if event_id is None:
        event_id = new_event_id()
        event = {source.id_field: event_id, **{name: value for name, value in event.items() if name != source.id_field}}
        text = None
    value = orjson.dumps(event, dump_decimal) if text is None else text
    if len(value) > MAX_NAME_CHARACTERS:
        _check_names(event)
    if key is None:
        names = source.key_names
        key = event_key(_first_value(event, names), event_id) if names else event_id.encode()
    parts = (key, value, event_id)
    return tuple.__new__(PreparedEvent, parts)  # as PreparedEvent(*parts), in a third of the time


def _first_value(event: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """As views/reading.py picks a field: the first of its names that has a value."""
    return next((value for name in names if (value := event.get(name)) is not None), None)


def event_key(value: str | int | None, event_id: str) -> bytes:
    """The Kafka key of an event by the value of its `key_field`; its id where that is missing or empty."""
    return (event_id if value is None or value == "" else str(value)).encode()


def _check_names(value: object) -> None:
    """Refuse names of fields that Spark's JSON reader would not take, at any depth."""
    if isinstance(value, dict):
        for name, part in value.items():
            if len(name) > MAX_NAME_CHARACTERS:
                raise InvalidEvent(f"{name[:40]}...", f"a name has at most {MAX_NAME_CHARACTERS} characters")
            _check_names(part)
    elif isinstance(value, list):
        for part in value:
            _check_names(part)


def new_event_id() -> str:
    """A random UUID that begins with the time (version 7): ids made later sort later."""
    ms = time.time_ns() // 1_000_000
    chance = os.urandom(10).hex()
    variant = "89ab"[int(chance[3], 16) & 3]
    head = f"{ms:012x}"
    return f"{head[:8]}-{head[8:]}-7{chance[:3]}-{variant}{chance[4:7]}-{chance[7:19]}"
