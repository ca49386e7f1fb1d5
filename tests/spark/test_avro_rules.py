"""Avro's own Java library, which Spark brings along: our texts and verdicts are the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tests.unit.compatibility_rules import ROWS
from views.schemas import AVRO, InvalidSchema, incompatibilities, parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOUNDED = settings(
    max_examples=600, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NAMES = ["A", "B", "x.A", "x.y.C"]
FIELDS = ["a", "b", "c"]
PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
VALUES = [None, True, 0, 7, 2**40, 1.5, 1e-7, 1e30, "A", "é\u001f\u2028/", [], [1], {}, {"a": 1}, {"k": "v"}]
LOGICAL = [{"logicalType": "date"}, {"logicalType": "decimal", "precision": 4, "scale": 2}, {"p": [1, {"z": 0.0}]}]


def _some(chance: Any, values: list[Any], most: int) -> list[Any]:
    return chance.sample(values, chance.randrange(min(most, len(values)) + 1))


def _notes(chance: Any, **notes: Any) -> dict[str, Any]:
    return {name: note for name, note in notes.items() if chance.random() < 0.2}


def _made(chance: Any, depth: int) -> Any:
    """A schema, most of the time."""
    kind = chance.choice(["primitive", "name", "array", "map", "union", *["fixed", "enum", "record", "record"] * 2])
    if depth == 0 or kind == "primitive":
        return chance.choice([chance.choice(PRIMITIVES), {"type": chance.choice(PRIMITIVES), **chance.choice(LOGICAL)}])
    if kind == "name":
        return chance.choice(NAMES)
    if kind == "union":
        return [_made(chance, depth - 1) for _ in range(chance.randrange(4))]
    if kind in ("array", "map"):
        inner = {"items" if kind == "array" else "values": _made(chance, depth - 1)}
        return {"type": kind, **inner, **_notes(chance, p=chance.choice(VALUES), doc=chance.choice(VALUES))}
    named = {"type": kind, "name": chance.choice(NAMES)}
    if kind == "fixed":
        named["size"] = chance.randrange(3)
    elif kind == "enum":
        named["symbols"] = _some(chance, ["A", "B", "C"], 3)
        named |= _notes(chance, default=chance.choice(["A", "B"]))
    else:
        named["type"] = chance.choice(["record", "record", "error"])
        named["fields"] = [_field(chance, name, depth) for name in _some(chance, FIELDS, 3)]
    namespace, doc = chance.choice(["", "x", "x.y"]), chance.choice(["", 'a "b"\n', 7])
    return named | _notes(
        chance, namespace=namespace, aliases=_some(chance, NAMES, 2), doc=doc, owner=chance.choice(VALUES)
    )


def _field(chance: Any, name: str, depth: int) -> dict[str, Any]:
    # An alias that is the field's own name reads nothing in Java, and the field itself here.
    aliases = [alias for alias in _some(chance, FIELDS, 2) if alias != name]
    order = chance.choice(["ascending", "IGNORE", "descending"])
    notes = _notes(
        chance, default=chance.choice(VALUES), aliases=aliases, order=order, doc="d", tag=chance.choice(VALUES)
    )
    return {"name": name, "type": _made(chance, depth - 1), **notes}


def _changed(schema: Any, chance: Any) -> Any:
    """The schema with a few parts exchanged: unlike two schemas of their own, the two have much in common."""
    if chance.random() < 0.08:
        return chance.choice(["int", "long", "string", "bytes", "double", ["null", "int"], ["long", "string"]])
    if isinstance(schema, list):
        return [_changed(item, chance) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = dict(schema)
    for member in ("type", "items", "values"):
        if isinstance(schema.get(member), dict | list) or (member != "type" and member in schema):
            result[member] = _changed(schema[member], chance)
    if "fields" in schema:
        result["fields"] = [
            {**field, "type": _changed(field["type"], chance)} for field in schema["fields"] if chance.random() < 0.8
        ]
    if "symbols" in schema:
        result["symbols"] = [symbol for symbol in schema["symbols"] if chance.random() < 0.7]
    return result


class Oracle:
    """Avro in the JVM."""

    def __init__(self, spark: SparkSession) -> None:
        assert spark._jvm is not None
        self._avro = spark._jvm.org.apache.avro

    def parse(self, text: str) -> Any:
        """The schema; None if Java refuses it."""
        try:
            return self._avro.Schema.Parser(self._avro.NameValidator.STRICT_VALIDATOR).parse(text)
        except (Py4JJavaError, PySparkException):
            return None

    def reads(self, reader: Any, writer: Any) -> bool:
        try:
            result = self._avro.SchemaCompatibility.checkReaderWriterCompatibility(reader, writer)
        except (Py4JJavaError, PySparkException):  # several fields of the writer match one of the reader
            return False
        return str(result.getType()) == "COMPATIBLE"


@pytest.fixture(scope="module")
def oracle(spark: SparkSession) -> Oracle:
    return Oracle(spark)


@BOUNDED
@given(chance=st.randoms(use_true_random=True))
def test_avro_texts_and_verdicts_are_those_of_java(oracle: Oracle, chance: Any) -> None:
    schema = _made(chance, depth=4)
    texts = [json.dumps(schema), json.dumps(_changed(schema, chance))]
    theirs = [oracle.parse(text) for text in texts]
    ours = []
    for text, known in zip(texts, theirs, strict=True):
        try:
            ours.append(parse(AVRO, text))
        except InvalidSchema as error:
            refusal = str(error)
        else:
            refusal = ""
        if refusal:
            # Java takes a type that is defined later, or twice alike; the specification and other libraries do not.
            assert known is None or "Define it before" in refusal or "second time" in refusal, text
            event("refused")
            return
        assert known is not None, text
        assert ours[-1].canonical == known.toString(), text
    for reader, writer in ((0, 1), (1, 0), (0, 0)):
        readable = not incompatibilities(ours[reader], ours[writer])
        event(f"readable {readable}")
        assert readable == oracle.reads(theirs[reader], theirs[writer]), (texts[reader], texts[writer])


def test_table_of_changes_is_what_java_says(oracle: Oracle) -> None:
    for row in ROWS:
        if row.type == AVRO:
            old, new = oracle.parse(row.old), oracle.parse(row.new)
            assert oracle.reads(new, old) == row.backward, row.change
            assert oracle.reads(old, new) == row.forward, row.change
