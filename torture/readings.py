"""Events as a version of their source reads them. The load sends all of them as the first version declares them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from views.field_types import INTEGER_BITS
from views.in_memory import Event
from views.reading import picked
from views.source import Source


def read_by(source: Source, events: Iterable[Event]) -> Iterator[Event]:
    """Those that a version of the source finds valid, with the fields that it declares."""
    largest = dict(_largest(source))
    for event in events:
        fields = event.fields if source.version == 1 else picked(source.schema, event.fields)
        if _fits(largest, fields):
            yield event if fields is event.fields else replace(event, fields=fields)


def has_room(source: Source, fields: Mapping[str, Any]) -> bool:
    """Whether each integer fits the type that is declared. Nothing else of the load depends on the version."""
    return _fits(dict(_largest(source)), fields)


def _fits(largest: Mapping[str, int], fields: Mapping[str, Any]) -> bool:
    return all(-most - 1 <= value <= most for name, most in largest.items() if (value := fields.get(name)) is not None)


def _largest(source: Source) -> Iterator[tuple[str, int]]:
    for field in source.schema:
        if field.type.kind in INTEGER_BITS:
            yield field.name, 2 ** (INTEGER_BITS[field.type.kind] - 1) - 1
