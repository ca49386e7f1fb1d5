"""Which writer schemas no decoder is given: a registry may take them, and a decoder may crash on one or stop at it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from views.formats.avro_decoding import decode_framed, decoder
from views.formats.avro_resolution import mismatch
from views.formats.avro_schema import SchemaError, avro_reader
from views.formats.framing import frame_of_id
from views.formats.undecodable import Undecodable
from views.formats.writer_schemas import WriterSchema


def record(name: str, **types: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": of} for field, of in types.items()]}


KIND = {"type": "enum", "name": "Kind", "symbols": ["A", "B"], "default": "A"}
READER = avro_reader(json.dumps(record("Order", event_id=["null", "string"], kind=KIND)))


def chain(levels: int, of: Any, *, twice: bool = False) -> dict[str, Any]:
    """An order with a type for each level, which has the one below as its field, or as both of its fields."""
    types = [record("T0", a=of)]
    types += [record(f"T{n}", a=f"T{n - 1}", **({"b": f"T{n - 1}"} if twice else {})) for n in range(1, levels)]
    return record("Order", event_id="string", **{f"t{number}": each for number, each in enumerate(types)})


LIST = record("shop.List", next=["null", "List"])
ENDLESS = record("Order", event_id="string", more=record("X", x="X"))
PAIR = record("A", b=["null", record("B", a={"type": "array", "items": "A"})])
DEEP = "it is nested deeper than 64 levels"
LARGE = "it has more than 100,000 types where each named type is written out"


def contains_itself(name: str) -> str:
    return f"it has the type {name!r}, which contains itself: a record could be of any depth"


REFUSED: list[tuple[Any, str]] = [
    (record("Order", event_id="string", more=LIST), contains_itself("shop.List")),
    (ENDLESS, contains_itself("X")),
    (record("Order", event_id="string", more={"type": "map", "values": "Order"}), contains_itself("Order")),
    (record("Order", event_id="string", more=PAIR), contains_itself("A")),
    (chain(5_000, "int"), DEEP),
    (chain(64, "int"), DEEP),
    (chain(40, "null", twice=True), LARGE),
    (chain(16, "null", twice=True), LARGE),
    (record("Order", kind={**KIND, "symbols": ["A", "a-b"]}), 'it is not Avro: Kind: "a-b" is no name. Use letters'),
    (record("Order", kind={**KIND, "symbols": ["A", "größe"]}), 'it is not Avro: Kind: "größe" is no name. Use'),
    (record("Order", kind={**KIND, "symbols": ["A", "A"]}), "it is not Avro: Kind: the enum has a symbol twice"),
    (record("Order", **{"a-b": "int"}), 'it is not Avro: Order: "a-b" is no name. Use letters'),
    (record("Order", more=["int", "int"]), "it is not Avro: Order.more: the union holds int twice"),
    (record("Order", more=["int", ["null"]]), "it is not Avro: Order.more: a union directly in a union"),
    (record("Order", more=record("tidemark_1", a="int")), "it is not Avro: tidemark_1.more: 'tidemark_1' is defined a"),
    (record("Order", more=record("tidemark_end", a="int")), "it is not Avro: "),
    (record("Order", more={"type": "fixed", "name": "F", "size": 2**31}), "it is not Avro: F: 'size' of a fixed"),
    ({**record("Order"), "fields": [{"name": "a", "type": "int"}] * 2}, "it is not Avro: Order.a: the record has this"),
]


@pytest.mark.parametrize(("schema", "why"), REFUSED)
def test_writer_that_no_decoder_takes_is_refused_with_the_reason(schema: Any, why: str) -> None:
    writer = WriterSchema("AVRO", json.dumps(schema))
    with pytest.raises(SchemaError) as refused:
        decoder(READER, writer)
    assert str(refused.value).startswith(why)
    with pytest.raises(Undecodable) as undecodable:
        decode_framed(READER, {frame_of_id(1): writer}, frame_of_id(1) + b"\x02" * 5_000)
    assert str(undecodable.value).startswith(f"schema id 1 cannot be read: {why}")


@pytest.mark.parametrize(
    "schema",
    [
        chain(15, "null", twice=True),
        chain(63, "int"),
        record("Order", event_id="string", größe=record("Größe", straße="int")),
        record("Order", first=record("shop.Line", n="int"), more={"type": "array", "items": "shop.Line"}),
        {**record("Order", event_id="string"), "fields": [{"name": "event_id", "type": "string", "default": 7}]},
    ],
)
def test_unusual_writer_is_read(schema: Any) -> None:
    """Many types, many levels, letters of other scripts, a type that is used twice; a default, which nothing reads."""
    assert mismatch(READER, json.dumps(schema)) is None
    decoder(READER, WriterSchema("AVRO", json.dumps(schema)))


def test_writer_may_refer_to_a_type_that_contains_itself_without_using_it() -> None:
    other = json.dumps(LIST)
    assert mismatch(READER, json.dumps(record("Order", event_id="string")), (("list", other),)) is None
    with pytest.raises(SchemaError, match=r"shop\.List"):
        mismatch(READER, json.dumps(record("Order", more="shop.List")), (("list", other),))
