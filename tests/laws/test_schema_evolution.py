"""What is called compatible is readable: values of the old schema, taken by the new one."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from views.schemas import AVRO, JSON, AvroSchema, InvalidSchema, JsonSchema, incompatibilities, parse
from views.schemas.avro_types import AvroType
from views.schemas.json_comparison import prove

NAMES = st.sampled_from(["a", "b", "i_c"])
NUMBERS = st.sampled_from([0, 1, 2, 1.5, -3])
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.sampled_from(["", "a", "ab", "abc"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=5,
)


def _json_object(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    named = st.dictionaries(NAMES, inner, max_size=2)
    optional = {
        "type": st.sampled_from(["object", ["object", "string"]]),
        "properties": named,
        "required": st.lists(NAMES, max_size=2, unique=True),
        "additionalProperties": inner,
        "patternProperties": st.dictionaries(st.sampled_from(["^i_", "b"]), inner, max_size=2),
        "minProperties": st.integers(0, 2),
        "items": inner,
        "anyOf": st.lists(inner, min_size=1, max_size=2),
        "not": inner,
        "if": inner,
        "then": inner,
    }
    return st.fixed_dictionaries({}, optional=optional)


JSON_SCHEMAS = st.recursive(
    st.one_of(
        st.booleans(),
        st.just({"$ref": "#"}),
        st.fixed_dictionaries({"type": st.sampled_from(["string", "integer", "number", "object", "array"])}),
        st.fixed_dictionaries({"enum": st.lists(VALUES, min_size=1, max_size=3)}),
        st.fixed_dictionaries(
            {}, optional={"minimum": NUMBERS, "exclusiveMaximum": NUMBERS, "maxLength": st.integers(0, 3)}
        ),
    ),
    _json_object,
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(old=JSON_SCHEMAS, new=JSON_SCHEMAS, values=st.lists(VALUES, min_size=5, max_size=20))
def test_json_values_of_the_old_schema_are_valid_in_a_compatible_one(old: Any, new: Any, values: list[Any]) -> None:
    # Most pairs have nothing in common: one that also takes what the other takes does.
    for reader in (new, {"anyOf": [new, old]}, _opened(old)):
        writer_schema, reader_schema = parse(JSON, json.dumps(old)), parse(JSON, json.dumps(reader))
        assert isinstance(writer_schema, JsonSchema)
        assert isinstance(reader_schema, JsonSchema)
        if not prove(reader_schema.document, writer_schema.document):
            for value in values:
                assert reader_schema.validator.is_valid(value) or not writer_schema.validator.is_valid(value)


def _opened(schema: Any) -> Any:
    """The schema with a property named that it did not name."""
    if not isinstance(schema, dict):
        return schema
    inner = schema.get("additionalProperties", True)
    return {**schema, "properties": {"i_c": inner, **schema.get("properties", {})}}


def _record(name: str, types: list[Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f"f{n}", "type": type} for n, type in enumerate(types)]}


AVRO_TYPES = st.recursive(
    st.sampled_from(["null", "boolean", "int", "long", "float", "double", "string", "bytes"]),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}),
        st.fixed_dictionaries({"type": st.just("map"), "values": inner}),
        st.lists(inner, min_size=1, max_size=3),
        st.builds(
            _record,
            st.sampled_from(["R", "S", "T"]),
            st.lists(inner, max_size=3),
        ),
        st.builds(
            lambda symbols: {"type": "enum", "name": "E", "symbols": symbols, "default": symbols[0]},
            st.lists(st.sampled_from(["A", "B", "C"]), min_size=1, max_size=3, unique=True),
        ),
    ),
    max_leaves=6,
)
WIDER = {"int": "long", "long": "double", "float": "double", "boolean": ["null", "boolean"]}


def _evolved(declared: Any, chance: Any) -> Any:
    """The schema after some of the changes that people make."""
    if isinstance(declared, str):
        return WIDER.get(declared, declared) if chance.random() < 0.4 else declared
    if isinstance(declared, list):
        kept = [branch if isinstance(branch, str) else _evolved(branch, chance) for branch in declared]
        return kept[::-1] if chance.random() < 0.3 else kept
    changed = dict(declared)
    for member in ("items", "values"):
        if member in declared:
            changed[member] = _evolved(declared[member], chance)
    if "fields" in declared:
        kept = [field for field in declared["fields"] if chance.random() < 0.8]
        changed["fields"] = [{**field, "type": _evolved(field["type"], chance)} for field in kept]
        if chance.random() < 0.5:
            changed["fields"].append({"name": "added", "type": ["null", "int"], "default": None})
    if "symbols" in declared and chance.random() < 0.5:
        changed["symbols"] = [*declared["symbols"], "D"]
    return changed


def _written(type: AvroType, chance: Any) -> Any:
    """A value of the type."""
    match type.kind:
        case "null":
            return None
        case "boolean":
            return chance.random() < 0.5
        case "int" | "long":
            return chance.randrange(-100, 100)
        case "float" | "double":
            return chance.randrange(100) / 4
        case "string":
            return chance.choice(["", "ä"])
        case "bytes":
            return chance.choice([b"", b"a"])
        case "enum":
            return chance.choice(type.symbols)
        case "union":
            return _written(chance.choice(type.branches), chance)
        case "record":
            return {field.name: _written(field.type, chance) for field in type.fields}
    assert type.element is not None
    count = chance.randrange(3)
    if type.kind == "array":
        return [_written(type.element, chance) for _ in range(count)]
    return {str(key): _written(type.element, chance) for key in range(count)}


@settings(max_examples=300, deadline=None)
@given(declared=AVRO_TYPES, chance=st.randoms(use_true_random=False))
def test_avro_records_of_the_old_schema_are_read_with_a_compatible_one(declared: Any, chance: Any) -> None:
    try:
        old = parse(AVRO, json.dumps(declared))
        new = parse(AVRO, json.dumps(_evolved(declared, chance)))
    except InvalidSchema:  # a name or a branch came twice
        reject()
    assert isinstance(old, AvroSchema)
    assert isinstance(new, AvroSchema)
    assume(not incompatibilities(new, old))
    writer, reader = fastavro.parse_schema(old.json), fastavro.parse_schema(new.json)
    for _ in range(5):
        record = io.BytesIO()
        fastavro.schemaless_writer(record, writer, _written(old.root, chance))
        size = record.tell()
        record.seek(0)
        read = fastavro.schemaless_reader(record, writer, reader)
        assert record.tell() == size
        again = io.BytesIO()
        fastavro.schemaless_writer(again, reader, read)
