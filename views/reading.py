"""How an event is read from the fields that came: by name or alias, with defaults, as values of the declared types.

`views/on_spark/events.py` does the same for Spark. The laws of the catalog hold both to each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

from views.errors import DeclarationError
from views.field_types import Field, FieldType, with_names

DECIMALS = Context(prec=76)
"""Room for every decimal(38, ...); Python's default has 28 digits."""
MAX_ALIASES = 16


def with_aliases(fields: tuple[Field, ...], aliases: Mapping[str, tuple[str, ...]]) -> tuple[Field, ...]:
    """The fields with other names under which they may come. `aliases` has paths: `{"properties.url": ("uri",)}`."""
    paths = {path for path, _ in with_names(fields)}
    if unknown := sorted(aliases.keys() - paths):
        raise DeclarationError(f"aliases names {unknown[0]!r}, which is not among its fields {sorted(paths)}.")
    return _with_aliases(fields, aliases, "")


def _with_aliases(fields: tuple[Field, ...], aliases: Mapping[str, tuple[str, ...]], above: str) -> tuple[Field, ...]:
    found = tuple(
        replace(
            each,
            type=replace(each.type, fields=_with_aliases(each.type.fields, aliases, f"{above}{each.name}."))
            if each.type.kind == "struct"
            else each.type,
            aliases=aliases.get(f"{above}{each.name}", ()),
        )
        for each in fields
    )
    known: dict[str, str] = {}
    for path, name in ((f"{above}{each.name}", name) for each in found for name in each.names):
        if name.lower() in known:
            raise DeclarationError(
                f"aliases: {name!r} of {path!r} is also a name of {known[name.lower()]!r} (Spark ignores case)."
            )
        known[name.lower()] = path
    return found


def wire_fields(fields: Iterable[Field]) -> tuple[Field, ...]:
    """The fields that may come, one for each name: `user_id`, alias `uid` -> `user_id`, `uid`."""
    return tuple(Field(name, _wire_type(each.type)) for each in fields for name in each.names)


def _wire_type(type_: FieldType) -> FieldType:
    return replace(type_, fields=wire_fields(type_.fields)) if type_.kind == "struct" else type_


def is_as_it_comes(fields: Iterable[Field]) -> bool:
    """Whether every field is read under its own name alone, and is null where it is absent."""
    return not any(each.aliases or each.default is not None for _, each in with_names(tuple(fields)))


def picked(fields: Iterable[Field], given: Mapping[str, Any]) -> dict[str, Any]:
    """The declared fields of what came: each from the first of its names that has a value, else its default.

    An explicit null stays null. A field that is absent and has no default is absent.
    """
    return dict(_picked(fields, given))


def _picked(fields: Iterable[Field], given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for each in fields:
        present = [name for name in each.names if name in given]
        value = next((given[name] for name in present if given[name] is not None), None)
        if value is not None and each.type.kind == "struct":
            yield each.name, picked(each.type.fields, value)
        elif present:
            yield each.name, value
        elif each.default is not None:
            yield each.name, each.default


def typed_event(fields: Iterable[Field], event: Mapping[str, Any]) -> dict[str, Any]:
    """A valid event as JSON has it -> all its fields, with the values that Spark would give them."""
    fields = tuple(fields)
    return _typed_struct(fields, picked(fields, event))


def _typed_struct(fields: Iterable[Field], value: Mapping[str, Any]) -> dict[str, Any]:
    return {each.name: _typed(each.type, value.get(each.name)) for each in fields}


def _typed(kind: FieldType, value: Any) -> Any:
    if value is None:
        return None
    match kind.kind:
        case "struct":
            return _typed_struct(kind.fields, value)
        case "array" if kind.element:
            return [_typed(kind.element, each) for each in value]
        case "map" if kind.element:
            return {key: _typed(kind.element, each) for key, each in value.items()}
        case "double" | "float":
            return float(value)
        case "decimal":
            return Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale), context=DECIMALS)
        case "timestamp" if isinstance(value, str):
            at = datetime.fromisoformat(value)
            return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
        case "date" if isinstance(value, str):
            return date.fromisoformat(value)
    return value


def rules_of(fields: Iterable[Field]) -> dict[str, dict[str, Any]]:
    """By path: what the fields say beyond names and types, as JSON has it."""
    return {path: rule for path, each in with_names(tuple(fields)) if (rule := dict(_rule(each)))}


def _rule(field: Field) -> Iterator[tuple[str, Any]]:
    if field.is_required:
        yield "required", True
    if field.default is not None:
        yield "default", field.default if isinstance(field.default, bool | int | str) else str(field.default)
    if field.aliases:
        yield "aliases", list(field.aliases)
