"""Read a record of a JSON source in Python, by the collector's checks: for whoever has no Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from master_dataset.events.validator import compile_validator
from views.formats.cloudevents_in_kafka import Headers, resolver
from views.source import Source
from views.strict_json import parse_json

Read = Callable[[bytes | None, Headers], dict[str, Any]]
"""The event of a record with this value and these headers. InvalidEvent where the checks refuse it."""


def compile_reader(source: Source) -> Read:
    """How the records of a source are read, out of its envelope if it has one. Made once for many of them."""
    resolve, validate = resolver(source), compile_validator(source)

    def read(value: bytes | None, headers: Headers) -> dict[str, Any]:
        event: dict[str, Any] = parse_json(resolve(value, headers) or b"")
        validate(event)
        return event

    return read
