"""CloudEvents 1.0 by HTTP: one in headers and body (binary), one as JSON (structured), or many as JSON (batch)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from infra.rest.problems import Problem
from infra.rest.responses import json_response
from master_dataset.collector.bodies import invalid_body, parse_within, read_body
from master_dataset.collector.context import Collector
from master_dataset.collector.doors.door import Door, Event, placed
from master_dataset.collector.doors.times import event_time
from master_dataset.collector.events import KEY_PARAMETER
from master_dataset.collector.parameters import one_of, query
from master_dataset.errors import InvalidEvent
from views.source import Source

STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
PREFIX = "ce-"
VERSION = "1.0"
REQUIRED = ("id", "source", "type")
TEXTS = (*REQUIRED, "subject", "time", "datacontenttype", "dataschema")
STORED = ("source", "type", "subject", "datacontenttype", "dataschema", "data", "data_base64")
FIELDS = (*STORED, "data_text", "extensions")
WHERE_DECLARED = ("id", "time", "specversion")
"""Attributes that are stored as id and time already, or always the same."""
EXTENSIONS = "extensions"
MAX_EXTENSIONS = 100
MAX_ATTRIBUTE_CHARACTERS = 8_192

_NAME = re.compile(r"[a-z0-9]{1,100}")
_JSON = re.compile(r"[a-z0-9.+_-]+/(?:[a-z0-9._-]+\+)?json", re.ASCII)
_UTF_8_TEXT = re.compile(r"""text/[a-z0-9.+_-]+\s*(?:;\s*charset\s*=\s*"?(?:utf-8|us-ascii)"?\s*)?""", re.ASCII)
_ESCAPED = re.compile(r"\\(.)")
_INT32 = 2**31

ABOUT = {
    "parameters": [
        KEY_PARAMETER,
        {
            "name": "id_scope",
            "in": "query",
            "schema": {"enum": ["global", "source"], "default": "global"},
            "description": "`source`: ids are unique for each `source` attribute only, which joins the event id.",
        },
    ],
    "requestBody": {
        "required": True,
        "content": {
            STRUCTURED: {"schema": {"type": "object"}},
            BATCH: {"schema": {"type": "array", "items": {"type": "object"}}},
            "*/*": {"schema": {}},
        },
    },
}

CloudEvent = dict[str, Any]
"""Attributes and data by their names, as the JSON format has them."""


def cloudevents_routes(collector: Collector) -> APIRouter:
    """`/cloudevents/{source}`."""
    routes = APIRouter(tags=["doors"])
    door = Door(collector, "a CloudEvent", FIELDS)

    @routes.post("/cloudevents/{source}", openapi_extra=ABOUT)
    async def store_cloudevents(source: str, request: Request) -> Response:
        """Store CloudEvents 1.0: binary (`ce-` headers), structured or batch, by the Content-Type.

        The attribute `id` is the event id. The answer has one result per event, in order: its id and its location, or
        its `error`. 200: all are stored. 422: some were not valid; the others are stored, see `results`.
        """
        target = door.open(request, source)
        id_scope = one_of("id_scope", query(request).get("id_scope", "global"), ("global", "source"))
        with collector.budget.charge() as charge:
            body = await read_body(request, collector.limits.of_body, charge, collector.parsing)

            def parse(part: bytes) -> Any:
                return parse_within(part, collector.limits.of_body)

            def read(into: Source) -> Iterable[Event]:
                found = cloudevents_in(request.headers, body, parse)
                return (_event(into, each, joins_source=id_scope == "source") for each in found)

            return json_response(await door.store_all(target, body, charge, read))

    return routes


def cloudevents_in(headers: Headers, body: bytes, parse: Callable[[bytes], Any]) -> list[Any]:
    """What a request carries, by its content mode: each a CloudEvent, or what is wrong with it."""
    content_type = headers.get("content-type", "").strip()
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == BATCH:
        found = parse(body)
        if type(found) is not list:
            raise invalid_body("", f"a batch ({BATCH}) is a JSON array of CloudEvents", status=400)
        return found
    if media_type == STRUCTURED:
        return [parse(body)]
    if media_type.startswith("application/cloudevents"):
        raise _unknown_mode(f"the format {media_type[:80]!r} is not known")
    if f"{PREFIX}specversion" in headers:
        return [_binary(headers, content_type, body, parse)]
    raise _unknown_mode(f"the Content-Type is {media_type[:80]!r}, and there is no header ce-specversion")


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
    return placed(source, event_id, time, {**fields, EXTENSIONS: extensions or None})


def _event(source: Source, found: object, *, joins_source: bool) -> Event:
    try:
        return event_of(source, found, joins_source=joins_source)
    except InvalidEvent as error:
        return error


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


def _binary(headers: Headers, content_type: str, body: bytes, parse: Callable[[bytes], Any]) -> CloudEvent:
    """`ce-id: 7`, `Content-Type: application/json` and a body -> its attributes and data."""
    found: CloudEvent = {}
    for name, value in headers.items():
        if not name.startswith(PREFIX):
            continue
        attribute = name.removeprefix(PREFIX)
        if attribute in found or attribute in ("datacontenttype", "data"):
            raise invalid_body(name, "this header is given twice, or not allowed in the binary mode", status=400)
        found[attribute] = _header_text(name, value)
    if content_type:
        found["datacontenttype"] = content_type
    if body:
        found |= data_of(content_type, body, parse)
    return found


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


def _header_text(name: str, value: str) -> str:
    """`Euro%20%E2%82%AC` -> `Euro €`; a quoted value loses its quotes."""
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = _ESCAPED.sub(r"\1", value[1:-1])
    try:
        return unquote_to_bytes(value.encode("latin-1")).decode()
    except UnicodeDecodeError:
        raise invalid_body(name, "this header should be percent-encoded UTF-8", status=400) from None


def _unknown_mode(found: str) -> Problem:
    return Problem(
        415,
        "unknown-content-mode",
        f"This is no CloudEvent: {found}. Send ce- headers (binary), {STRUCTURED} or {BATCH}. Nothing was stored.",
    )
