"""Map what a web server logged of one request to the fields that a source declares."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from typing import Any, NamedTuple

from master_dataset.errors import InvalidEvent
from master_dataset.importer.errors import UnusableInput
from master_dataset.importer.values import Convert, converter
from views.field_types import FieldType
from views.source import Source

EVENT_NAME = "request"


class Request(NamedTuple):
    """One request as text; None is what the log does not tell. `time` is ISO 8601."""

    time: str
    user_id: str | None = None
    url: str | None = None
    method: str | None = None
    status: str | None = None
    ms: str | None = None
    bytes: str | None = None
    referrer: str | None = None
    agent: str | None = None
    ip: str | None = None


PROPERTIES = Request._fields[2:]
ToEvent = Callable[[Request], dict[str, Any]]


def compile_web_event(source: Source) -> ToEvent:
    """The function that makes an event of a request, decided once from the declaration.

    A value goes to `properties.<name>` where the source has that, else to a field `<name>`, else nowhere.
    """
    fields = {name: field.type for field in source.schema for name in field.names}
    nested = _nested(fields.get("properties"))
    inside = _placed(nested, PROPERTIES)
    outside = _placed({name: fields[name] for name in fields if name not in nested}, ("user_id", *PROPERTIES))
    if not inside and not outside:
        raise UnusableInput(
            f"Source {source.name!r} declares no field that a web-server log could fill. "
            f"Add some of these to its fields, or to a struct 'properties': user_id, {', '.join(PROPERTIES)}."
        )
    time_field, has_name = source.time_field, "name" in fields

    def to_event(request: Request) -> dict[str, Any]:
        event: dict[str, Any] = {time_field: request.time}
        if has_name:
            event["name"] = EVENT_NAME
        _fill(event, request, outside, "")
        if inside:
            properties: dict[str, Any] = {}
            _fill(properties, request, inside, "properties.")
            event["properties"] = properties
        return event

    return to_event


Placed = tuple[tuple[int, str, Convert], ...]


def _fill(target: dict[str, Any], request: Request, placed: Placed, path: str) -> None:
    name = ""
    try:
        for index, name, convert in placed:
            text = request[index]
            if text is not None:
                target[name] = text if convert is str else convert(text)
    except InvalidEvent as error:
        raise InvalidEvent(path + name, error.reason) from None


def _placed(types: dict[str, FieldType], names: tuple[str, ...]) -> Placed:
    return tuple((Request._fields.index(name), name, converter(types[name], UTC)) for name in names if name in types)


def _nested(properties: FieldType | None) -> dict[str, FieldType]:
    """The types of the parts of `properties`; a map takes every part."""
    if properties is None:
        return {}
    if properties.kind == "map" and properties.element:
        return dict.fromkeys(PROPERTIES, properties.element)
    return {name: field.type for field in properties.fields for name in field.names}
