"""What a CloudEvent 1.0 is, whichever protocol brought it, and the event of a source that it becomes."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from typing import Any

from views.errors import InvalidEvent
from views.formats.times import event_time
from views.source import Source

STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
VERSION = "1.0"
REQUIRED = ("id", "source", "type")
TEXTS = (*REQUIRED, "subject", "time", "datacontenttype", "dataschema")
STORED = ("source", "type", "subject", "datacontenttype", "dataschema", "data", "data_base64")
FIELDS = (*STORED, "data_text", "extensions")
"""The fields that a CloudEvent fills, besides id and time."""
WHERE_DECLARED = ("id", "time", "specversion")
"""Attributes that are stored as id and time already, or always the same."""
EXTENSIONS = "extensions"
MAX_EXTENSIONS = 100
MAX_ATTRIBUTE_CHARACTERS = 8_192

_NAME = re.compile(r"[a-z0-9]{1,100}")
_JSON = re.compile(r"[a-z0-9.+_-]+/(?:[a-z0-9._-]+\+)?json", re.ASCII)
_UTF_8_TEXT = re.compile(r"""text/[a-z0-9.+_-]+\s*(?:;\s*charset\s*=\s*"?(?:utf-8|us-ascii)"?\s*)?""", re.ASCII)
_INT32 = 2**31

CloudEvent = dict[str, Any]
"""Attributes and data by their names, as the JSON format has them."""


def event_of(source: Source, found: object, *, joins_source: bool = False) -> dict[str, Any]:
    """A CloudEvent as an event of a source, or InvalidEvent.

    An extension attribute goes to the field that has its name, perhaps as an alias, else into `extensions`.
    """
    if isinstance(found, InvalidEvent):
        raise found
    if type(found) is not dict:
        raise InvalidEvent("", "a CloudEvent is a JSON object")
    attributes = _checked(found)
    event_id = f"{attributes['source']} {attributes['id']}" if joins_source else attributes["id"]
    declared = {name: field.type for field in source.schema if EXTENSIONS not in field.names for name in field.names}
    time = event_time(attributes["time"], "time") if "time" in attributes else None
    fields = {name: attributes[name] for name in STORED if name in attributes}
    if "data" in declared and declared["data"].kind in ("map", "struct") and type(attributes.get("data")) is not dict:
        fields["data_text"] = fields.pop("data", None)
    fields |= {name: attributes[name] for name in WHERE_DECLARED if name in declared and name in attributes}
    if joins_source:
        fields["id"] = attributes["id"]
    extensions = {name: value for name, value in attributes.items() if name not in (*STORED, *WHERE_DECLARED)}
    fields |= {name: extensions.pop(name) for name in declared.keys() & extensions.keys()}
    fields[EXTENSIONS] = extensions or None
    event = {name: value for name, value in fields.items() if value is not None}
    return {**event, source.id_field: event_id, source.time_field: time}


def data_of(content_type: str, body: bytes, parse: Callable[[bytes], Any]) -> CloudEvent:
    """The data as the JSON format has it: JSON as it is, text as a string, all else in base64."""
    kind = content_type.lower()
    if not kind or _JSON.fullmatch(kind.partition(";")[0].strip()):
        return {"data": parse(body)}
    if _UTF_8_TEXT.fullmatch(kind):
        try:
            return {"data": body.decode()}
        except UnicodeDecodeError:
            pass
    return {"data_base64": base64.b64encode(body).decode()}


def _checked(found: dict[str, Any]) -> CloudEvent:
    """The attributes that are not null, and the data; InvalidEvent for what CloudEvents 1.0 does not allow."""
    version = found.get("specversion")
    if version != VERSION:
        raise InvalidEvent("specversion", f"this should be {VERSION!r}; it is {str(version)[:40]!r}")
    if len(found) > MAX_EXTENSIONS + len(TEXTS):
        raise InvalidEvent("", f"a CloudEvent may have {MAX_EXTENSIONS} extension attributes")
    kept = {name: value for name, value in found.items() if value is not None}
    for name in REQUIRED:
        if name not in kept:
            raise InvalidEvent(name, "every CloudEvent has this attribute; here it is missing")
    data, in_base64 = kept.pop("data", None), kept.pop("data_base64", None)
    for name, value in kept.items():
        _check_attribute(name, value)
    if data is not None and in_base64 is not None:
        raise InvalidEvent("data_base64", "a CloudEvent has either data or data_base64")
    if data is not None:
        kept["data"] = data
    if in_base64 is not None:
        kept["data_base64"] = _base64(in_base64)
    return kept


def _check_attribute(name: str, value: object) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidEvent(name[:100], "names of attributes have lower-case letters and digits, at most 100")
    if name in TEXTS and (type(value) is not str or not value):
        raise InvalidEvent(name, "this attribute should be a text that is not empty")
    if type(value) is str:
        if len(value) > MAX_ATTRIBUTE_CHARACTERS:
            raise InvalidEvent(name, f"an attribute may have {MAX_ATTRIBUTE_CHARACTERS} characters; put more into data")
    elif type(value) is int:
        if not -_INT32 <= value < _INT32:
            raise InvalidEvent(name, "a number among the attributes is an integer of 32 bits")
    elif type(value) is not bool:
        raise InvalidEvent(name, "an attribute is a text, an integer, or true or false; put other values into data")


def _base64(value: object) -> str:
    try:
        if type(value) is str and base64.b64decode(value, validate=True) is not None:
            return value
    except (binascii.Error, ValueError):
        pass
    raise InvalidEvent("data_base64", "this should be base64")
