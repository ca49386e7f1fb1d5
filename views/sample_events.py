"""Generate events for a source, the same for a seed: the laws of a view are checked on them.

They are hostile: fields missing or null, few different values (so that groups meet), the constants that a view's own
conditions ask for, zeros and extremes, times out of order, duplicates in one partition.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import sqlglot
from sqlglot import exp

from views.aggregates import Aggregate
from views.field_types import INTEGER_BITS, Field, FieldType
from views.in_memory import Event
from views.reading import picked
from views.source import Source
from views.types import EXACT
from views.view import View

START = datetime(2026, 3, 1, 22, tzinfo=UTC)
SPAN_S = 4 * 3600
LONG = ("é✓𝄞" * 114, "é✓𝄞" * 114 + "/", "x" * 1_024, "x" * 1_025)
"""Around the length at which texts are shortened, with characters of one to four bytes. Most begin alike."""
STRINGS = (
    "", "a", "b", "/", "/docs/a.html", "Ünï ✓", "it's", 'q"\\', "line\nend", "x" * 40, " padded ", "12", "-7", *LONG,
)  # fmt: skip
NUMBERS = (0, 1, -1, 2, 10, 99, 500, 3)
FLOATS = (0.0, 1.5, -2.25, 0.1, 1e-12, 1e9, 123.456, 1e300)
ABSENT, NULL = 0.08, 0.06
"""How often a field is left out, or null."""


@dataclass(frozen=True)
class SampleRecord:
    """An event as it goes into Kafka, and as the reference interpreter is to read it."""

    value: bytes
    event: Event


def generate(
    source: Source, count: int, seed: int, *, views: Iterable[View] = (), partitions: int = 3, duplicates: float = 0.05
) -> list[SampleRecord]:
    """`count` records of a source; a share `duplicates` of them repeats an earlier one, byte for byte."""
    chance = random.Random(seed)  # noqa: S311  # generated events, no secret
    views = list(views)
    constants = sorted({each for view in views for each in _constants(view)}, key=repr)
    # Some within a few buckets of the finest view: else hardly two events would meet in a bucket of 5 seconds.
    spans_s = sorted({SPAN_S, *(min(4 * view.bucket.seconds, SPAN_S) for view in views)})
    records: list[SampleRecord] = []
    offsets = [0] * partitions
    for number in range(count):
        if records and chance.random() < duplicates:
            known = chance.choice(records)
            partition, value, event = known.event.partition, known.value, known.event
            event = Event(partition, offsets[partition], event.event_id, event.event_time, event.fields)
        else:
            partition = chance.randrange(partitions)
            since_start_s = chance.randrange(chance.choice(spans_s))
            at = START + timedelta(seconds=since_start_s, microseconds=chance.choice((0, 1, 999_999)))
            sent = _struct(source.schema, chance, constants)
            sent |= {source.id_field: f"e{seed}-{number}", source.time_field: at}
            value, fields = encode(sent).encode(), picked(source.schema, sent)
            event = Event(partition, offsets[partition], fields[source.id_field], at, fields)
        offsets[partition] += 1
        records.append(SampleRecord(value, event))
    return records


def encode(value: Any) -> str:
    """As JSON; decimals as numbers with all their digits."""
    match value:
        case dict():
            return "{" + ",".join(f"{json.dumps(name)}:{encode(each)}" for name, each in value.items()) + "}"
        case list():
            return "[" + ",".join(map(encode, value)) + "]"
        case Decimal():
            return f"{value:f}"
        case datetime():
            return json.dumps(value.isoformat())
        case date():
            return json.dumps(value.isoformat())
    return json.dumps(value)


def _struct(fields: Iterable[Field], chance: random.Random, constants: list[Any]) -> dict[str, Any]:
    """As it is sent: under any name, and with a value where that is required."""
    made = {}
    for field in fields:
        draw = chance.random()
        if draw < ABSENT and not (field.is_required and field.default is None):
            continue
        name = chance.choice(field.names) if field.aliases else field.name
        is_null = draw < ABSENT + NULL and not field.is_required
        made[name] = None if is_null else _value(field.type, chance, constants)
    return made


def _value(kind: FieldType, chance: random.Random, constants: list[Any]) -> Any:
    match kind.kind:
        case "struct":
            return _struct(kind.fields, chance, constants)
        case "array" if kind.element:
            return [_value(kind.element, chance, constants) for _ in range(chance.randrange(4))]
        case "map" if kind.element:
            return {key: _value(kind.element, chance, constants) for key in chance.sample(("a", "b", "c"), 2)}
        case "string":
            return chance.choice([*STRINGS, *[each for each in constants if isinstance(each, str)] * 4])
        case "boolean":
            return chance.random() < 0.5
        case "date":
            return date(2026, 3, chance.randrange(1, 4))
        case "timestamp":
            return START + timedelta(seconds=chance.randrange(SPAN_S))
        case "decimal":
            largest = 10**kind.precision - 1
            digits = chance.choice((0, 1, -1, chance.randint(-largest, largest), largest))
            return Decimal(digits).scaleb(-kind.scale, context=EXACT)
        case "float" | "double":
            number = chance.choice([*FLOATS, chance.uniform(0, 1000), *_numbers(constants)])
            return _as_float(float(number)) if kind.kind == "float" else float(number)
    largest = 2 ** (INTEGER_BITS[kind.kind] - 1) - 1
    number = chance.choice([*NUMBERS, largest, -largest - 1, *_numbers(constants)])
    return max(min(int(number), largest), -largest - 1)


def _as_float(number: float) -> float:
    """The nearest number of 32 bits, if there is one."""
    return float(struct.unpack("f", struct.pack("f", min(max(number, -1e38), 1e38)))[0])


def _numbers(constants: list[Any]) -> list[Any]:
    """Constants, and what lies just beside them."""
    found = [each for each in constants if not isinstance(each, str)]
    return [near for each in found for near in (each, each, each + 1, each - 1)]


def _constants(view: View) -> Iterator[Any]:
    """The constants in a view's expressions: `status >= 500` -> 500."""
    for text in _expressions(view):
        for node in sqlglot.parse_one(text, dialect="spark").find_all(exp.Literal):
            if node.is_string:
                yield node.this.replace("%", "x")
            else:
                yield float(node.this) if "." in node.this or "e" in node.this.lower() else int(node.this)


def _expressions(view: View) -> Iterator[str]:
    yield from view.keys.values()
    if view.where is not None:
        yield view.where
    for answer in view.answers.values():
        if isinstance(answer, Aggregate):
            yield from (text for text in (answer.expression(), answer.where) if text)
