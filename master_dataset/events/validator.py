"""A source's validator, compiled: valid events pass in one unrolled function, others are explained by the slow checks.

For `url string, properties struct<ms: double>` the compiled part is, in short:

    v = event.get('url')
    if v is not None and type(v) is not str:
        return False
    v = event.get('properties')
    if v is not None:
        if type(v) is not dict:
            return False
        v1 = v.get('ms')
        ...
    return True

It halves the time of the whole validation, which is the largest part of what the collector does with an event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from master_dataset.errors import InvalidEvent
from master_dataset.events.field_checks import (
    LARGEST_FLOAT,
    MAX_ID_CHARACTERS,
    TIMESTAMP,
    Check,
    check_of,
    explaining_check,
)
from views.field_types import INTEGER_BITS, Field, FieldType
from views.formats.cloudevents_in_kafka import SPECVERSION, knows_by_value
from views.source import Source

ID = FieldType("id")
EVENT_TIME = FieldType("event_time")
"""The two fields with a role have narrower types than the declaration says."""


def compile_validator(source: Source, *, only: tuple[str, ...] = ()) -> Check:
    """A function that raises InvalidEvent unless a parsed value is an event of this source. Make it once per source.

    With `only`, it is for events that have no other field than the one with this path, and takes less time.
    """
    explain = explaining_check(source)
    accepts = _compile(source, only)

    def validate(event: object) -> None:
        try:
            if accepts(event):
                return
        except (InvalidEvent, ValueError):
            pass
        explain(event)  # the slow checks decide; the compiled ones only know what is certainly valid

    return _without_cloudevents(validate) if knows_by_value(source) else validate


def _without_cloudevents(validate: Check) -> Check:
    """An event that the layers would take for a CloudEvent is refused: it would be read otherwise than it was sent."""

    def check(event: object) -> None:
        if type(event) is dict and SPECVERSION in event:
            raise InvalidEvent(SPECVERSION, "records of this source that have it are CloudEvents; send it as one")
        validate(event)

    return check


def _compile(source: Source, only: tuple[str, ...] = ()) -> Callable[[Any], bool]:
    roles = {source.id_field: ID, source.time_field: EVENT_TIME}
    checks: list[Check] = []
    fields = [replace(field, type=roles.get(field.name, field.type)) for field in _along(source.schema, only)]
    lines = ["def accepts(event):", "    if type(event) is not dict:", "        return False"]
    lines += (f"    {line}" for line in _struct(fields, "event", 0, checks))
    lines.append("    return True")
    scope: dict[str, Any] = {
        "is_time": TIMESTAMP.fullmatch,
        "read_time": datetime.fromisoformat,
        "checks": tuple(checks),
    }
    # Nothing of the declaration gets into the text but names of fields, quoted by repr.
    exec("\n".join(lines), scope)  # noqa: S102  see the module's first sentence
    accepts: Callable[[Any], bool] = scope["accepts"]
    return accepts


def _along(fields: tuple[Field, ...], path: tuple[str, ...]) -> tuple[Field, ...]:
    """The field with this path, inside the structs that lead to it; all fields where the path is empty."""
    if not path:
        return fields
    found = next(field for field in fields if path[0] in field.names)
    return (replace(found, type=replace(found.type, fields=_along(found.type.fields, path[1:]))),)


def _struct(fields: Iterable[Field], value: str, depth: int, checks: list[Check]) -> Iterator[str]:
    """Lines that return False unless the dict named `value` has these fields."""
    yield f"get{depth} = {value}.get"
    part = f"v{depth}"
    for field in fields:
        for name in field.names:
            yield f"{part} = get{depth}({name!r})"
            yield from _member(field.type, part, depth, checks)
        if field.is_required:
            is_null = " and ".join(f"get{depth}({name!r}) is None" for name in field.names)
            is_given = " or ".join(f"{name!r} in {value}" for name in field.names)
            yield f"if {is_null}{'' if field.default is None else f' and ({is_given})'}:"
            yield "    return False"


def _member(type_: FieldType, part: str, depth: int, checks: list[Check]) -> Iterator[str]:
    if type_.kind == "struct":
        yield f"if {part} is not None:"
        yield f"    if type({part}) is not dict:"
        yield "        return False"
        yield from (f"    {line}" for line in _struct(type_.fields, part, depth + 1, checks))
    else:
        yield f"if {part} is not None and ({_wrong(type_, part, checks)}):"
        yield "    return False"


def _wrong(type_: FieldType, value: str, checks: list[Check]) -> str:
    """An expression that is true, or raises, unless the variable named `value` is certainly of the type."""
    if type_.kind in INTEGER_BITS:
        end = 2 ** (INTEGER_BITS[type_.kind] - 1)
        return f"type({value}) is not int or not {-end} <= {value} < {end}"
    match type_.kind:
        case "string":
            return f"type({value}) is not str or '\\0' in {value}"
        case "id":
            return f"type({value}) is not str or not 0 < len({value}) <= {MAX_ID_CHARACTERS} or '\\0' in {value}"
        case "boolean":
            return f"type({value}) is not bool"
        case "double":
            return f"type({value}) is not float and type({value}) is not int"
        case "float":
            number = f"type({value}) is not float and type({value}) is not int"
            return f"({number}) or not {-LARGEST_FLOAT!r} <= {value} <= {LARGEST_FLOAT!r}"
        case "timestamp":
            return f"type({value}) is not str or not is_time({value}) or not read_time({value})"
        case "event_time":
            year = f"not '1971' <= {value}[:4] <= '2198'"
            return f"type({value}) is not str or {year} or not is_time({value}) or not read_time({value})"
    checks.append(check_of(type_))
    return f"checks[{len(checks) - 1}]({value})"
