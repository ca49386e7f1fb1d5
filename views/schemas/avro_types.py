"""Avro types, parsed from the JSON of a schema: names resolved, defaults checked, everything else kept."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from views.schemas import json_text
from views.schemas.model import InvalidSchema

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMED = ("record", "error", "enum", "fixed")
MAX_TYPES = 20_000

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = {"doc", "fields", "items", "name", "namespace", "size", "symbols", "values", "type", "aliases"}
_RESERVED_IN_FIELDS = {"aliases", "default", "doc", "name", "order", "type"}
_BITS = {"int": 31, "long": 63}
_ORDERS = ("ascending", "descending", "ignore")


@dataclass(eq=False)
class AvroType:
    """A type. A named type is one object, however often it is used; other types are objects of their own."""

    kind: str
    path: str
    name: str = ""
    doc: str | None = None
    aliases: tuple[str, ...] = ()
    properties: dict[str, Any] = field(default_factory=dict)
    fields: list[Field] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
    size: int = 0
    element: AvroType | None = None
    branches: list[AvroType] = field(default_factory=list)

    @property
    def is_record(self) -> bool:
        """Whether it has fields: an error is a record, too."""
        return self.kind in ("record", "error")

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else self.kind


@dataclass(eq=False)
class Field:
    """A field of a record."""

    name: str
    type: AvroType
    doc: str | None
    has_default: bool
    default: Any
    order: str
    aliases: tuple[str, ...]
    properties: dict[str, Any]


def namespace_of(name: str) -> str:
    """The namespace of a full name; empty if it has none."""
    return name.rpartition(".")[0]


class AvroParser:
    """Parses schemas one after the other; each knows the named types of those before it."""

    def __init__(self) -> None:
        self.named: dict[str, AvroType] = {}
        self._count = 0

    def parse(self, text: str, what: str) -> AvroType:
        """The type of a schema's text. What is parsed later can use the named types in it."""
        return self._type(_read(text, what), "", what)

    def _type(self, declared: Any, namespace: str, path: str) -> AvroType:
        self._count += 1
        if self._count > MAX_TYPES:
            raise InvalidSchema(f"The AVRO schema has more than {MAX_TYPES} types. Split it.")
        match declared:
            case str():
                return AvroType(declared, path) if declared in PRIMITIVES else self._known(declared, namespace, path)
            case list():
                return self._union(declared, namespace, path)
            case {"type": str() as kind}:
                return self._of_kind(kind, declared, namespace, path)
            case {"type": dict() | list()}:
                problem = "'type' holds a whole type. Write that type in place of the object around it"
            case dict():
                problem = "an object without 'type' is no type. Give it a 'type', such as \"record\" or \"string\""
            case _:
                problem = f"{json_text.write(declared)} is no type. Write a name, an object with 'type', or a list"
        raise _refusal(path, problem)

    def _of_kind(self, kind: str, declared: dict[str, Any], namespace: str, path: str) -> AvroType:
        if kind in NAMED:
            return self._named_type(kind, declared, namespace, path)
        properties = _properties(declared, _RESERVED)
        if kind in PRIMITIVES:
            return AvroType(kind, path, properties=properties)
        if kind in ("array", "map"):
            member, suffix = ("items", "[]") if kind == "array" else ("values", "{}")
            if member not in declared:
                raise _refusal(path, f"the {kind} lacks '{member}', the type of what it holds")
            element = self._type(declared[member], namespace, path + suffix)
            return AvroType(kind, path, element=element, properties=properties)
        return self._known(kind, namespace, path)

    def _known(self, name: str, namespace: str, path: str) -> AvroType:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        known = self.named.get(full) or self.named.get(name)
        if known is None:
            raise _refusal(
                path,
                f"there is no type '{full}'. Define it before it is used, or add a reference to its schema",
            )
        return known

    def _union(self, declared: list[Any], namespace: str, path: str) -> AvroType:
        union = AvroType("union", path)
        seen = set()
        for item in declared:
            branch = self._type(item, namespace, path)
            if branch.kind == "union":
                raise _refusal(path, "a union directly in a union. Write all types into one list")
            if (branch.name or branch.kind) in seen:
                raise _refusal(path, f"the union holds {branch} twice")
            seen.add(branch.name or branch.kind)
            union.branches.append(branch)
        return union

    def _named_type(self, kind: str, declared: dict[str, Any], namespace: str, path: str) -> AvroType:
        name = _full_name(declared, namespace, path)
        inner = namespace_of(name)
        if name in self.named:
            raise _refusal(path, f"'{name}' is defined a second time")
        found = AvroType(
            kind,
            name,
            name,
            doc=_text(declared.get("doc")),
            aliases=_aliases(declared, inner, name),
            properties=_properties(declared, _RESERVED | {"default"} if kind == "enum" else _RESERVED),
        )
        self.named[name] = found  # before its fields, which may be of this type
        if kind == "enum":
            _fill_enum(found, declared)
        elif kind == "fixed":
            found.size = _size(declared, name)
        else:
            self._fill_record(found, declared, inner)
        return found

    def _fill_record(self, record: AvroType, declared: dict[str, Any], namespace: str) -> None:
        fields = declared.get("fields")
        if not isinstance(fields, list):
            raise _refusal(record.name, "a record needs 'fields', a list")
        seen = set()
        for index, item in enumerate(fields):
            if not isinstance(item, dict) or not isinstance(item.get("name"), str):
                raise _refusal(record.name, f"field {index} is no object with a 'name'")
            name = _valid_name(item["name"], record.name)
            path = f"{record.name}.{name}"
            if name in seen:
                raise _refusal(path, "the record has this field twice")
            seen.add(name)
            if "type" not in item:
                raise _refusal(path, "the field lacks 'type'")
            type = self._type(item["type"], namespace, path)
            record.fields.append(_field(item, type, path))
        # Only now: a default of the record's own type needs the whole record.
        for field_ in record.fields:
            if field_.has_default and not fits(field_.type, field_.default):
                shown = json_text.write(field_.default)[:200]
                raise _refusal(f"{record.name}.{field_.name}", f"the default {shown} is no {_kinds(field_.type)}")


def fits(type: AvroType, value: Any) -> bool:
    """Whether a JSON value is a default of the type."""
    return _Fitting().fits(type, value)


class _Fitting:
    """Remembers which value fits which type: unions in unions of records would try the same pairs again and again."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], bool] = {}

    def fits(self, type: AvroType, value: Any) -> bool:
        pair = (id(type), id(value))
        if pair not in self._known:
            self._known[pair] = self._fits(type, value)
        return self._known[pair]

    def _fits(self, type: AvroType, value: Any) -> bool:
        match type.kind:
            case "null":
                return value is None
            case "boolean":
                return isinstance(value, bool)
            case "int" | "long":
                limit = 2 ** _BITS[type.kind]
                return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
            case "float" | "double":
                return isinstance(value, int | float) and not isinstance(value, bool)
            case "string" | "bytes" | "enum" | "fixed":
                return isinstance(value, str)
            case "union":
                return any(self.fits(branch, value) for branch in type.branches)
            case "record" | "error":
                return isinstance(value, dict) and all(
                    self.fits(part.type, value[part.name]) if part.name in value else part.has_default
                    for part in type.fields
                )
        element = type.element
        if element is None:
            raise ValueError(f"{type.kind} is no kind of Avro types")
        if type.kind == "array":
            return isinstance(value, list) and all(self.fits(element, item) for item in value)
        return isinstance(value, dict) and all(self.fits(element, item) for item in value.values())


def _read(text: str, what: str) -> Any:
    """The JSON of a schema, or a bare name, which Avro allows as a text of its own."""
    bare = text.strip()
    if bare and all(_NAME.fullmatch(part) for part in bare.split(".")):
        return bare
    return _with_doubles(json_text.read(text, what))


def _with_doubles(value: Any) -> Any:
    """The same value with doubles for Decimals: Avro keeps no digits beyond those."""
    if isinstance(value, dict):
        return {name: _with_doubles(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_doubles(item) for item in value]
    return float(value) if isinstance(value, Decimal) else value


def _field(declared: dict[str, Any], type: AvroType, path: str) -> Field:
    order = declared.get("order", "ascending")
    if not isinstance(order, str) or order.lower() not in _ORDERS:
        raise _refusal(path, f"'order' is {json_text.write(order)}. Write one of {', '.join(_ORDERS)}")
    aliases = _list_of_texts(declared, "aliases", path)
    default = declared.get("default")
    if type.kind in ("float", "double") and isinstance(default, str):
        default = _number(default, path)
    return Field(
        name=declared["name"],
        type=type,
        doc=_text(declared.get("doc")),
        has_default="default" in declared,
        default=default,
        order=order.lower(),
        aliases=tuple(dict.fromkeys(aliases)),
        properties=_properties(declared, _RESERVED_IN_FIELDS),
    )


def _number(text: str, path: str) -> float:
    """A default of a float may be a text, such as "NaN", which JSON has no number for."""
    try:
        return float(text)
    except ValueError:
        raise _refusal(path, f"the default {json_text.quoted(text)} is no number") from None


def _full_name(declared: dict[str, Any], enclosing: str, path: str) -> str:
    name, namespace = declared.get("name"), declared.get("namespace", enclosing)
    if not isinstance(name, str) or not name:
        raise _refusal(path, f"the {declared['type']} lacks 'name'")
    if not isinstance(namespace, str):
        raise _refusal(path, f"'namespace' of {name} is {json_text.write(namespace)}, and not a text")
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    for part in full.split("."):
        _valid_name(part, path)
    if full in PRIMITIVES:
        raise _refusal(path, f"'{full}' is a type of Avro and cannot be defined again")
    return full


def _valid_name(name: str, path: str) -> str:
    if not _NAME.fullmatch(name):
        raise _refusal(path, f"{json_text.quoted(name)} is no name. Use letters, digits and _, and begin with no digit")
    return name


def _aliases(declared: dict[str, Any], namespace: str, path: str) -> tuple[str, ...]:
    aliases = _list_of_texts(declared, "aliases", path)
    for alias in aliases:
        for part in alias.split("."):
            _valid_name(part, path)
    return tuple(dict.fromkeys(alias if "." in alias or not namespace else f"{namespace}.{alias}" for alias in aliases))


def _fill_enum(enum: AvroType, declared: dict[str, Any]) -> None:
    if "symbols" not in declared:
        raise _refusal(enum.name, "the enum lacks 'symbols', a list of texts")
    enum.symbols = tuple(_list_of_texts(declared, "symbols", enum.name))
    for symbol in enum.symbols:
        _valid_name(symbol, enum.name)
    if len(set(enum.symbols)) != len(enum.symbols):
        raise _refusal(enum.name, "the enum has a symbol twice")
    default = declared.get("default")
    if default is not None and default not in enum.symbols:
        raise _refusal(enum.name, f"the default {json_text.write(default)} is none of the symbols")
    enum.default_symbol = default


def _size(declared: dict[str, Any], name: str) -> int:
    size = declared.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**31:
        raise _refusal(name, f"'size' of a fixed is a number of bytes, and not {json_text.write(size)}")
    return size


def _list_of_texts(declared: dict[str, Any], member: str, path: str) -> list[str]:
    values = declared.get(member, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise _refusal(path, f"'{member}' is no list of texts")
    return values


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _properties(declared: dict[str, Any], reserved: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in declared.items() if name not in reserved}


def _kinds(type: AvroType) -> str:
    return " or ".join(str(branch) for branch in type.branches) if type.kind == "union" else str(type)


def _refusal(path: str, problem: str) -> InvalidSchema:
    return InvalidSchema(f"{path}: {problem}.")
