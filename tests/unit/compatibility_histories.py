"""Histories of three versions: what the levels say of the third, which count the second alone or both before it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.unit.compatibility_rules import (
    BACKWARD,
    BOTH,
    CLOSED,
    ENUM,
    FORWARD,
    INTEGER,
    NEITHER,
    NUMBER,
    ONE,
    STRING,
    A,
    enum,
    field,
    fields,
    object_of,
    record,
)
from views.schemas import AVRO, JSON, PROTOBUF


@dataclass(frozen=True)
class History:
    """Three versions of a schema, and who of the last two, and of the first and the last, reads whom."""

    type: str
    change: str
    versions: tuple[str, str, str]
    with_second: tuple[bool, bool]
    with_first: tuple[bool, bool]

    def verdicts(self) -> Iterator[tuple[str, bool]]:
        """Whether the third version may follow, by level."""
        backward, forward = self.with_second
        yield "NONE", True
        yield "BACKWARD", backward
        yield "FORWARD", forward
        yield "FULL", backward and forward
        backward, forward = backward and self.with_first[0], forward and self.with_first[1]
        yield "BACKWARD_TRANSITIVE", backward
        yield "FORWARD_TRANSITIVE", forward
        yield "FULL_TRANSITIVE", backward and forward


B = field("b", "int")
B_0 = field("b", "int", default=0)

AVRO_HISTORIES: list[tuple[str, tuple[Any, Any, Any], tuple[bool, bool], tuple[bool, bool]]] = [
    ("nothing changes", (record(A), record(A), record(A)), BOTH, BOTH),
    ("field with default added, default removed", (record(A), record(A, B_0), record(A, B)), BOTH, FORWARD),
    ("field removed, and back with default", (record(A, B), record(A), record(A, B_0)), BOTH, BOTH),
    ("field removed, and back without default", (record(A, B), record(A), record(A, B)), FORWARD, BOTH),
    (
        "field removed, and back with another type",
        (record(A, B), record(A), record(A, field("b", "string", default=""))),
        BOTH,
        NEITHER,
    ),
    ("default given, field removed", (record(A, B), record(A, B_0), record(A)), BOTH, BACKWARD),
    ("int to long to double", ("int", "long", "double"), BACKWARD, BACKWARD),
    ("int to long and back", ("int", "long", "int"), FORWARD, BOTH),
    ("long to float by way of int", ("long", "int", "float"), BACKWARD, BACKWARD),
    (
        "renamed twice, with an alias for each name",
        (
            record(A),
            record(field("b", "int", aliases=["a"])),
            record(field("c", "int", aliases=["a", "b"])),
        ),
        BACKWARD,
        BACKWARD,
    ),
    (
        "renamed twice, with an alias for the last name",
        (record(A), record(field("b", "int", aliases=["a"])), record(field("c", "int", aliases=["b"]))),
        BACKWARD,
        NEITHER,
    ),
    ("symbol added, then a default", (enum("A"), enum("A", "B"), enum("A", "B", default="A")), BOTH, BACKWARD),
    (
        "default given, symbol removed",
        (enum("A", "B"), enum("A", "B", default="A"), enum("A", default="A")),
        BOTH,
        BOTH,
    ),
    ("null added to a union, type removed", (["int"], ["null", "int"], ["null"]), FORWARD, NEITHER),
]
JSON_HISTORIES: list[tuple[str, tuple[Any, Any, Any], tuple[bool, bool], tuple[bool, bool]]] = [
    ("nothing changes", (STRING, STRING, STRING), BOTH, BOTH),
    ("integer to number and back", (INTEGER, NUMBER, INTEGER), FORWARD, BOTH),
    ("integer to number to anything", (INTEGER, NUMBER, {}), BACKWARD, BACKWARD),
    ("string to anything to integer", (STRING, {}, INTEGER), FORWARD, NEITHER),
    ("string to nothing to integer", (STRING, False, INTEGER), BACKWARD, NEITHER),
    (
        "limit lowered, then raised beyond the first",
        ({"type": "integer", "minimum": 2}, {"type": "integer", "minimum": 1}, {"type": "integer", "minimum": 3}),
        FORWARD,
        FORWARD,
    ),
    (
        "limit raised, then lowered below the first",
        ({"type": "integer", "minimum": 2}, {"type": "integer", "minimum": 3}, {"type": "integer", "minimum": 1}),
        BACKWARD,
        BACKWARD,
    ),
    (
        "limit raised, then lowered a little",
        ({"type": "integer", "minimum": 1}, {"type": "integer", "minimum": 3}, {"type": "integer", "minimum": 2}),
        BACKWARD,
        FORWARD,
    ),
    (
        "property of a closed object removed, and back with another type",
        (
            object_of({"a": INTEGER, "b": INTEGER}, **CLOSED),
            object_of({"a": INTEGER}, **CLOSED),
            object_of({"a": INTEGER, "b": STRING}, **CLOSED),
        ),
        BACKWARD,
        NEITHER,
    ),
    (
        "property of an open object removed, and back with another type",
        (object_of({"b": INTEGER}), object_of(), object_of({"b": STRING})),
        FORWARD,
        NEITHER,
    ),
    (
        "required taken back, and required again",
        (
            object_of({"a": INTEGER}, required=["a"]),
            object_of({"a": INTEGER}),
            object_of({"a": INTEGER}, required=["a"]),
        ),
        FORWARD,
        BOTH,
    ),
    ("values of an enum exchanged in two steps", ({"enum": [1]}, {"enum": [1, 2]}, {"enum": [2]}), FORWARD, NEITHER),
    ("values of an enum added twice", ({"enum": [1]}, {"enum": [1, 2]}, {"enum": [1, 2, 3]}), BACKWARD, BACKWARD),
]
PROTOBUF_HISTORIES: list[tuple[str, tuple[str, str, str], tuple[bool, bool], tuple[bool, bool]]] = [
    ("nothing changes", (fields(ONE), fields(ONE), fields(ONE)), BOTH, BOTH),
    (
        "fields added",
        (fields(ONE), fields(ONE, "int32 b = 2;"), fields(ONE, "int32 b = 2;", "int32 c = 3;")),
        BOTH,
        BOTH,
    ),
    ("field removed, and back", (fields(ONE, "int32 b = 2;"), fields(ONE), fields(ONE, "int32 b = 2;")), BOTH, BOTH),
    (
        "number of a removed field given to another type",
        (fields(ONE, "int32 b = 2;"), fields(ONE), fields(ONE, "string b = 2;")),
        BOTH,
        NEITHER,
    ),
    (
        "number of a removed field given to a field of another name",
        (fields(ONE, "int32 b = 2;"), fields(ONE), fields(ONE, "int32 c = 2;")),
        BOTH,
        BOTH,
    ),
    (
        "number of a removed field repeated",
        (fields(ONE, "int32 b = 2;"), fields(ONE), fields(ONE, "repeated int32 b = 2;")),
        BOTH,
        NEITHER,
    ),
    (
        "number of a removed message given to a scalar",
        (
            fields(ONE, "message N { int32 x = 1; } N b = 2;"),
            fields(ONE, "message N { int32 x = 1; }"),
            fields(ONE, "message N { int32 x = 1; } string b = 2;"),
        ),
        BOTH,
        NEITHER,
    ),
    ("int32 to int64 and back", (fields(ONE), fields("int64 a = 1;"), fields(ONE)), BOTH, BOTH),
    ("int32 to bool by way of int64", (fields(ONE), fields("int64 a = 1;"), fields("bool a = 1;")), BOTH, BOTH),
    (
        "int32 to sint32 by way of nothing",
        (fields(ONE, "int32 b = 2;"), fields(ONE), fields(ONE, "sint32 b = 2;")),
        BOTH,
        NEITHER,
    ),
    (
        "enum to number and back",
        (fields(ENUM, "E a = 1;"), fields(ENUM, ONE), fields(ENUM, "E a = 1;")),
        BOTH,
        BOTH,
    ),
    (
        "string to bytes and back",
        (fields("string a = 1;"), fields("bytes a = 1;"), fields("string a = 1;")),
        BOTH,
        BOTH,
    ),
]

HISTORIES = [
    *(
        History(kind, change, (json.dumps(first), json.dumps(second), json.dumps(third)), with_second, with_first)
        for kind, rows in ((AVRO, AVRO_HISTORIES), (JSON, JSON_HISTORIES))
        for change, (first, second, third), with_second, with_first in rows
    ),
    *(History(PROTOBUF, *row) for row in PROTOBUF_HISTORIES),
]
