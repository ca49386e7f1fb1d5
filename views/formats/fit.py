"""Free values as a source declares them.

Where the source declares text, a number, a boolean, an object or an array becomes its JSON text: so a
`map<string,string>` takes any JSON object. Everything else stays as it is, and has to be of the declared type.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from views.field_types import Field, FieldType
from views.source import Source
from views.strict_json import dump_json

Fit = Callable[[Any], Any]


@lru_cache(maxsize=256)
def fit_of(source: Source) -> Fit:
    """The function that makes the values of an event fit, decided once from the declaration."""
    return _fit_fields(source.schema) or _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _fit_fields(fields: tuple[Field, ...]) -> Fit | None:
    fits = tuple((name, fit) for field in fields if (fit := _fit(field.type)) is not None for name in field.names)
    if not fits:
        return None

    def fit_object(value: Any) -> Any:
        if type(value) is not dict:
            return value
        fitted = dict(value)
        for name, fit in fits:
            found = fitted.get(name)
            if found is not None:
                fitted[name] = fit(found)
        return fitted

    return fit_object


def _fit(type_: FieldType) -> Fit | None:
    match type_.kind:
        case "string":
            return _text
        case "struct":
            return _fit_fields(type_.fields)
        case "map" | "array" if type_.element:
            fit = _fit(type_.element)
            if fit is not None:
                return _fit_map(fit) if type_.kind == "map" else _fit_array(fit)
    return None


def _fit_map(fit: Fit) -> Fit:
    def fit_map(value: Any) -> Any:
        if type(value) is not dict:
            return value
        return {key: None if found is None else fit(found) for key, found in value.items()}

    return fit_map


def _fit_array(fit: Fit) -> Fit:
    def fit_array(value: Any) -> Any:
        return [None if found is None else fit(found) for found in value] if type(value) is list else value

    return fit_array


def _text(value: Any) -> Any:
    return value if type(value) is str else dump_json(value).decode()
