"""Avro types as text: in the member order, and with the namespaces, of Java's `Schema.toString`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from views.schemas import json_text
from views.schemas.avro_types import AvroType, Field, namespace_of


def to_text(type: AvroType, known: Iterable[str] = (), *, normalize: bool = False) -> str:
    """The text of a type. Named types are written out where they come first, unless they are among the `known` ones.

    With `normalize`, what may be written in any order is sorted: properties, aliases, and members of values.
    """
    return json_text.write(_Writer(set(known), normalize).type(type, ""))


class _Writer:
    """Turns types into JSON values, and remembers which named types it has written."""

    def __init__(self, written: set[str], normalize: bool) -> None:
        self._written = written
        self._normalize = normalize

    def type(self, type: AvroType, namespace: str) -> Any:
        if type.name:
            return self._named(type, namespace)
        if type.kind == "union":
            return [self.type(branch, namespace) for branch in type.branches]
        if type.element is not None:
            member = "items" if type.kind == "array" else "values"
            return {"type": type.kind, member: self.type(type.element, namespace), **self._properties(type.properties)}
        return {"type": type.kind, **self._properties(type.properties)} if type.properties else type.kind

    def _named(self, type: AvroType, namespace: str) -> Any:
        own, simple = namespace_of(type.name), type.name.rpartition(".")[2]
        if type.name in self._written:
            return _reference(type.name, namespace)
        self._written.add(type.name)
        text: dict[str, Any] = {"type": type.kind, "name": simple}
        if own != namespace:
            text["namespace"] = own
        if type.doc is not None and (type.doc or not self._normalize):
            text["doc"] = type.doc
        if type.is_record:
            text["fields"] = [self._field(field, own) for field in type.fields]
        elif type.kind == "enum":
            text["symbols"] = list(type.symbols)
            if type.default_symbol is not None:
                text["default"] = type.default_symbol
        else:
            text["size"] = type.size
        text |= self._properties(type.properties)
        if type.aliases:
            text["aliases"] = [_reference(alias, own) for alias in self._aliases(type.aliases)]
        return text

    def _field(self, field: Field, namespace: str) -> dict[str, Any]:
        text: dict[str, Any] = {"name": field.name, "type": self.type(field.type, namespace)}
        if field.doc is not None:
            text["doc"] = field.doc
        if field.has_default:
            text["default"] = self._value(_default(field))
        if field.order != "ascending":
            text["order"] = field.order
        if field.aliases:
            text["aliases"] = self._aliases(field.aliases)
        return text | self._properties(field.properties)

    def _aliases(self, aliases: tuple[str, ...]) -> list[str]:
        return sorted(aliases) if self._normalize else list(aliases)

    def _properties(self, properties: dict[str, Any]) -> dict[str, Any]:
        if not self._normalize:
            return properties
        first = [name for name in ("logicalType", "precision", "scale") if name in properties]
        names = [*first, *sorted(properties)] if "logicalType" in properties else sorted(properties)
        return {name: self._value(properties[name]) for name in names}

    def _value(self, value: Any) -> Any:
        if not self._normalize:
            return value
        if isinstance(value, dict):
            return {name: self._value(value[name]) for name in sorted(value)}
        return [self._value(item) for item in value] if isinstance(value, list) else value


def _default(field: Field) -> Any:
    """The default as JSON can say it: NaN and the infinities are texts."""
    if isinstance(field.default, float) and not math.isfinite(field.default):
        return "NaN" if math.isnan(field.default) else "Infinity" if field.default > 0 else "-Infinity"
    return field.default


def _reference(name: str, namespace: str) -> str:
    """A full name as it is written inside a namespace; the name of a primitive is never shortened to."""
    own, _, simple = name.rpartition(".")
    return simple if own == namespace and simple not in _KINDS else name


_KINDS = {
    *("record", "enum", "array", "map", "union", "fixed", "string", "bytes"),
    *("int", "long", "float", "double", "boolean", "null"),
}
