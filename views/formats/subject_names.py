"""The subjects under which serializers register what they write to a topic, by the strategy that they are set to.

TopicName          orders-value
RecordName         com.shop.Order
TopicRecordName    orders-com.shop.Order
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from views.source import Source

SUFFIX = "-value"


def subjects_of(source: Source) -> list[str]:
    """The subjects that describe the records of a source, one for each strategy; none where they name no schema."""
    if not source.is_framed:
        return []
    record = record_name(source)
    named = [record, f"{source.topic}-{record}"] if record else []
    return [f"{source.topic}{SUFFIX}", *named]


def record_name(source: Source) -> str | None:
    """What serializers call the records of a source: the full name of its reader schema, or a JSON Schema's title."""
    if source.format == "protobuf":
        return source.protobuf.message
    if source.format == "json":
        return None
    schema: Any = json.loads(str(source.reader_schema))
    if source.format == "json_schema":
        title = schema.get("title")
        return title if isinstance(title, str) and title else None
    name, namespace = schema["name"], schema.get("namespace")
    return name if "." in name or not namespace else f"{namespace}.{name}"


def topic_in(subject: str, record: str | None) -> str | None:
    """The topic that a subject names, of a schema with this record name; None where it names none.

    `orders-com.shop.Order` -> `orders`
    """
    for suffix in (SUFFIX, *([f"-{record}"] if record else [])):
        topic = subject.removesuffix(suffix)
        if topic and topic != subject:
            return topic
    return None
