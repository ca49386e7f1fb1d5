"""JSON texts whose decimals Spark reads in bounded time.

Java takes seconds to give the decimal `1e10000000` its declared scale, and minutes with a few more digits: one such
record would stop the archiver and the speed layer, and again after each restart. So exponents beyond 2000 are read as
2000. That changes no value: a number has 1,000 characters at most, so it is zero or too large with either, in any type.

A decimal in a string may look like the text of another field: `{"price": "1e10000000", "city": "71e12345"}`. A text
with such a string is read with its decimals as strings first. If one of them has an exponent of four digits or more,
or 1,000 characters, the record is corrupt.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as f

from views.field_types import Field, FieldType

MAX_CHARACTERS = 1000
"""Spark's JSON reader takes no longer numbers; a decimal in a string may have no more either."""
_LARGEST_EXPONENT = "2000"
_LARGE = r"0*+(?:[0-9]{5,}+|[2-9][0-9]{3})"
_UP_TO_LARGE = rf'(?s)\G(?<before>(?:[^"eE]++|"(?:[^"\\]++|\\.)*+"|[eE](?![+-]?{_LARGE}))*+[eE][+-]?){_LARGE}'
"""The rest of the text up to a large exponent that is in no string."""
_AFTER_E = r"[eE](?:[-+,0-9]|[^\x00-\x7f]|\\u[0-9a-fA-F]{4}){4}"
_ESCAPED_E = "\\u0065", "\\u0045"
"""What is in every text with an exponent of four digits. Few others have it: a letter e before four digits."""
_CHARACTER = r"(?:[-+.,eE]|\p{Nd}|\\u[0-9a-fA-F]{4})"
_MANTISSA_CHARACTER = r"(?:[-+.,]|\p{Nd}|\\u(?!00[46]5)[0-9a-fA-F]{4})"
_LONG_STRING = rf'"{_CHARACTER}{{{MAX_CHARACTERS}}}+'
_IN_STRING = rf'"(?:{_MANTISSA_CHARACTER}*+(?:[eE]|\\u00[46]5){_CHARACTER}{{4}}|{_CHARACTER}{{{MAX_CHARACTERS}}}+)'
"""A string that may be such a decimal. Java takes digits of all scripts, Spark drops commas, and JSON has escapes."""
_LONG_TEXT = r"[eE][-+,0]*+(?:\p{Nd},*+){4}"
_NO_JSON, _CORRUPT = "]", "_corrupt"


def bounded(text: Column, fields: tuple[Field, ...]) -> Column:
    """The text for `from_json` with these fields: the same, but that no decimal in it takes long to read.

    It costs a search in each text for sources that have decimals, and nothing for others.
    """
    if not any(has_decimals(each.type) for each in fields):
        return text
    limited = f.regexp_replace(text, _UP_TO_LARGE, f"${{before}}{_LARGEST_EXPONENT}")
    may_be_in_string = f.rlike(text, f.lit(_IN_STRING))
    is_long = may_be_in_string & _is_long_in(f.when(may_be_in_string, text), fields)
    may_be_long = f.rlike(text, f.lit(_AFTER_E)) | reduce(or_, [f.contains(text, f.lit(each)) for each in _ESCAPED_E])
    may_be_long |= (f.octet_length(text) > MAX_CHARACTERS) & f.rlike(text, f.lit(_LONG_STRING))
    return f.when(may_be_long, f.when(is_long, _NO_JSON).otherwise(limited)).otherwise(text)


def has_decimals(type_: FieldType) -> bool:
    """Whether a value of this type is or holds a decimal."""
    inner = [type_.element] if type_.element else [field.type for field in type_.fields]
    return type_.kind == "decimal" or any(map(has_decimals, inner))


def _is_long_in(text: Column, fields: tuple[Field, ...]) -> Column:
    """Whether a decimal of these fields is too long in the value that `from_json` reads, or that cannot be said.

    Of a repeated key only the last value is seen here, while Spark makes decimals of all: such a text is refused.
    """
    columns = ", ".join(f"`{each.name}` {_as_text(each.type).ddl()}" for each in fields)
    read = f.from_json(text, f"{columns}, {_CORRUPT} string", {"columnNameOfCorruptRecord": _CORRUPT})
    is_unclear = read[_CORRUPT].isNotNull() | f.try_parse_json(text).isNull()
    return is_unclear | _is_long(FieldType("struct", fields=fields), read)


def _as_text(type_: FieldType) -> FieldType:
    if type_.kind == "decimal":
        return FieldType("string")
    return replace(
        type_,
        element=_as_text(type_.element) if type_.element else None,
        fields=tuple(replace(each, type=_as_text(each.type)) for each in type_.fields),
    )


def _is_long(type_: FieldType, value: Column) -> Column:
    """Whether a value, its decimals read as texts, has one that is too long. False for null."""
    if type_.element is not None:
        element = type_.element
        values = f.map_values(value) if type_.kind == "map" else value
        found = f.exists(values, lambda one: _is_long(element, one))
    elif type_.kind == "struct":
        with_decimals = [each for each in type_.fields if has_decimals(each.type)]
        found = reduce(or_, [_is_long(each.type, value[each.name]) for each in with_decimals])
    else:
        found = (f.length(value) > MAX_CHARACTERS) | f.rlike(value, f.lit(_LONG_TEXT))
    return f.coalesce(found, f.lit(False))
