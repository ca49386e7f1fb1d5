"""The declared fields of an event, taken from those that came: names and aliases, defaults, required fields.

`views/reading.py` does the same without Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark.sql import Column
from pyspark.sql import functions as f

from views.field_types import Field
from views.reading import is_as_it_comes
from views.types import literal


def declared_event(fields: Iterable[Field], came: Column, text: Column) -> Column:
    """The struct of the declared fields. `came` is the struct of all names that may come, `text` its JSON."""
    return f.struct(*(_value(each, came, text).alias(each.name) for each in fields))


def missing_required(
    fields: Iterable[Field], came: Column, text: Column, above: str = ""
) -> Iterator[tuple[str, Column]]:
    """The paths of required fields, and whether one has no value. Those of a struct are required where that is."""
    for each in fields:
        found = _first(each, came)
        path = f"{above}{each.name}"
        if each.is_required:
            is_missing = came.isNotNull() & found.isNull()
            yield path, is_missing & _is_given(each, text) if each.default is not None else is_missing
        if each.type.kind == "struct":
            yield from missing_required(each.type.fields, found, _text_of(each, text), f"{path}.")


def _value(field: Field, came: Column, text: Column) -> Column:
    """Its value: from the first name that has one, else the default, unless a null was sent."""
    found = _first(field, came)
    if field.type.kind == "struct" and not is_as_it_comes(field.type.fields):
        inner = declared_event(field.type.fields, found, _text_of(field, text))
        return f.when(found.isNotNull(), inner)
    if field.default is None:
        return found
    default = f.expr(literal(field.default)).cast(field.type.ddl())
    return f.when(found.isNull() & ~_is_given(field, text), default).otherwise(found)


def _first(field: Field, came: Column) -> Column:
    values = [came.getField(name) for name in field.names]
    return values[0] if len(values) == 1 else f.coalesce(*values)


def _is_given(field: Field, text: Column) -> Column:
    """Whether a member of one of its names is there, even if it is null: a struct cannot say that, a map can."""
    members = _members(text)
    there = [f.coalesce(f.map_contains_key(members, name), f.lit(False)) for name in field.names]
    return f.array_contains(f.array(*there), True)


def _text_of(field: Field, text: Column) -> Column:
    """The JSON of a struct inside the struct with this JSON."""
    members = _members(text)
    return f.coalesce(*(members.getItem(name) for name in field.names))


def _members(text: Column) -> Column:
    """The members of a JSON object that is known to be one, each as its text."""
    return f.from_json(text, "map<string,string>", {"mode": "PERMISSIVE"})
