"""A record of Kafka that carries a CloudEvent -> the JSON of the event that the collector's door would store for it.

    content-type: application/cloudevents+json      structured: the value is the whole CloudEvent
    ce_specversion: 1.0, ce_id: 7, ...              binary: attributes in the headers, data in the value
    {"specversion": "1.0", "id": "7", ...}          structured, from clients that do not say so in a header
    anything else                                   an event of the source as it is, as the collector stores one

Every layer, Spark's too, resolves records with this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from views.errors import InvalidEvent
from views.formats.cloudevents import BATCH, STRUCTURED, CloudEvent, data_of, event_of
from views.formats.fit import fit_of
from views.source import CLOUDEVENTS_BY_SOURCE, Source
from views.strict_json import dump_json, parse_json

PREFIX, CONTENT_TYPE = "ce_", "content-type"
FAMILY = "application/cloudevents"
NO_HEADERS = ("datacontenttype", "data", "data_base64")
"""What has another place in the binary mode."""
SPECVERSION = "specversion"
_QUOTED_SPECVERSION = b'"specversion"'

Headers = Iterable[tuple[str, bytes | None]]
Resolve = Callable[[bytes | None, Headers], bytes | None]
"""The JSON of a record's event; None where it has no value and is no CloudEvent. InvalidEvent for a wrong one."""


def resolver(source: Source) -> Resolve:
    """How the records of a source are resolved, whether it has an envelope or not. Made once for many of them."""
    if not source.envelope:
        return _as_it_is
    fit, joins_source = fit_of(source), source.envelope == CLOUDEVENTS_BY_SOURCE
    is_known_by_value = knows_by_value(source)

    def resolve(value: bytes | None, headers: Headers) -> bytes | None:
        try:
            found = cloudevent_of(value, headers, is_known_by_value=is_known_by_value)
            if found is None:
                return value
            return dump_json(fit(event_of(source, found, joins_source=joins_source)))
        except InvalidEvent as error:
            raise InvalidEvent("", f"not a CloudEvent: {error}") from None

    return resolve


def _as_it_is(value: bytes | None, _headers: Headers) -> bytes | None:
    return value


def knows_by_value(source: Source) -> bool:
    """Whether a JSON object with a member `specversion` is a CloudEvent: not where that is a field like others."""
    return bool(source.envelope) and not any(SPECVERSION in field.names for field in source.schema)


def cloudevent_of(value: bytes | None, headers: Headers, *, is_known_by_value: bool = True) -> Any:
    """The CloudEvent that a record carries, not checked yet; None where it carries none."""
    attributes, given = _headers_of(headers)
    content_type = _text(CONTENT_TYPE, given.strip())
    if content_type.lower().startswith(FAMILY):
        return _structured(value, content_type)
    if attributes:
        return _binary(value, attributes, content_type)
    return _by_value(value, content_type) if is_known_by_value else None


def _headers_of(headers: Headers) -> tuple[dict[str, bytes | None], bytes]:
    """The attributes among the headers, and the content type."""
    attributes: dict[str, bytes | None] = {}
    content_type: bytes | None = None
    for name, content in headers:
        if name.lower() == CONTENT_TYPE:
            if content_type is not None:
                raise InvalidEvent(CONTENT_TYPE, "this header is given twice")
            content_type = content or b""
        elif name.startswith(PREFIX):
            attribute = name.removeprefix(PREFIX)
            if attribute in attributes or attribute in NO_HEADERS:
                raise InvalidEvent(name[:100], "this header is given twice, or not allowed in the binary mode")
            attributes[attribute] = content
    return attributes, content_type or b""


def _by_value(value: bytes | None, content_type: str) -> Any:
    """The CloudEvent that a JSON object says it is. Python's SDK 1 names the type of the data in the header."""
    if value is None or _QUOTED_SPECVERSION not in value:
        return None
    try:
        found = parse_json(value)
    except InvalidEvent:
        return None  # what is wrong with it, is said of it as of any JSON
    if type(found) is not dict or SPECVERSION not in found:
        return None
    return {"datacontenttype": content_type, **found} if content_type else found


def _structured(value: bytes | None, content_type: str) -> Any:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == BATCH:
        raise InvalidEvent(CONTENT_TYPE, f"{BATCH} is for HTTP; a record of Kafka has one CloudEvent")
    if media_type != STRUCTURED:
        raise InvalidEvent(CONTENT_TYPE, f"the format {media_type[:80]!r} is not known; there is {STRUCTURED}")
    if value is None:
        raise InvalidEvent("", "the record has no value")
    return parse_json(value)


def _binary(value: bytes | None, attributes: dict[str, bytes | None], content_type: str) -> CloudEvent:
    found: CloudEvent = {name: _text(f"{PREFIX}{name[:100]}", content) for name, content in attributes.items()}
    if content_type:
        found["datacontenttype"] = content_type
    return found | data_of(content_type, value, _data) if value else found


def _data(value: bytes) -> Any:
    try:
        return parse_json(value)
    except InvalidEvent as error:
        raise InvalidEvent("data", str(error)) from None


def _text(name: str, content: bytes | None) -> str:
    """What a header says: UTF-8, without the percent-encoding of HTTP."""
    try:
        return (content or b"").decode()
    except UnicodeDecodeError:
        raise InvalidEvent(name, "this header should be UTF-8") from None
