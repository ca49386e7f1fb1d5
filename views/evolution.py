"""Whether a source may go on with another reading: what changes, and what is refused with its reason.

Old records are read again by the new reading, from the bytes that were sent. A change is refused where what was valid
would become invalid, or would say something else, without anybody having meant it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from views.field_types import INTEGER_BITS, Field, FieldType
from views.formats.cloudevents_in_kafka import knows_by_value
from views.source import Source

BITS_OF_DOUBLE = 53


@dataclass(frozen=True)
class Evolution:
    """What differs between two readings of a source."""

    changes: tuple[str, ...]
    refused: tuple[str, ...]
    """What is not allowed, each with its reason; empty: the new reading may follow the old one."""


def evolution(old: Source, new: Source, earlier: Sequence[Source] = ()) -> Evolution:
    """What changes from one reading to another. `earlier`: those before it, whose records are read again too."""
    refused = [
        f"{role} was {before!r} and is {now!r}: {why}"
        for role, before, now, why in (
            ("id_field", old.id_field, new.id_field, "events would get other ids or times"),
            ("time_field", old.time_field, new.time_field, "events would get other ids or times"),
            ("the format", old.format, new.format, "records of both would be in one topic"),
            ("the framing", old.framing, new.framing, "records of both would be in one topic"),
            ("the envelope", old.envelope, new.envelope, "records that are in the topic would be read otherwise"),
        )
        if before != now
    ]
    if knows_by_value(old) != knows_by_value(new):
        refused.append("'specversion' tells CloudEvents from other records: it cannot be declared or dropped later")
    changes: list[str] = []
    for is_allowed, text in _differences(old, new) if old.format == new.format else ():
        (changes if is_allowed else refused).append(text)
    for before in () if refused else (*earlier, old):
        refused += _of_earlier(before, new)
    return Evolution(tuple(changes), tuple(refused))


def _differences(old: Source, new: Source) -> Iterator[Difference]:
    """What differs between two readings of one format, field by field."""
    if old.format == "avro":
        from views.formats import avro_evolution

        yield from avro_evolution.differences(old.reader_meaning["reads"], new.reader_meaning["reads"])
        if not avro_evolution.is_written_alike(old.reader_meaning.get("bytes"), new.reader_meaning.get("bytes")):
            yield False, "its records have no frames, and the new reader schema would have written them otherwise"
    elif old.format == "protobuf":
        from views.formats import protobuf_evolution

        reads = old.reader_meaning["reads"], new.reader_meaning["reads"]
        yield from protobuf_evolution.differences(*reads, is_framed=new.is_framed)
    else:
        yield from _fields(old.schema, new.schema, "")


def _of_earlier(before: Source, new: Source) -> Iterator[str]:
    """What an earlier version read, and the new one would not, or otherwise."""
    if before.reader_meaning is None:
        yield from _of_the_same_name(before.schema, new.schema, "", before.version)
    else:
        for is_allowed, text in _differences(before, new):
            if not is_allowed:
                yield f"{text} (compared with version {before.version})"


Difference = tuple[bool, str]
"""Whether it is allowed, and what it is."""


def _fields(old: tuple[Field, ...], new: tuple[Field, ...], above: str) -> Iterator[Difference]:
    before, now = ({field.name: field for field in fields} for fields in (old, new))
    for name, field in now.items():
        path = f"{above}{name}"
        if name in before:
            yield from _field(before[name], field, path)
            continue
        renamed = next((each for each in old if each.name in field.aliases and each.name not in now), None)
        if renamed is not None:
            yield True, f"{path!r} is the new name of {above + renamed.name!r}"
            yield from _field(renamed, field, path)
        elif other := next((each for each in before if each.lower() == name.lower()), None):
            yield False, f"{path!r} differs from {above + other!r} by case only, which Spark ignores"
        elif field.is_required and field.default is None:
            yield False, f"{path!r} is new and NOT NULL: all records so far would be invalid. Give it a DEFAULT"
        else:
            yield True, f"{path!r} ({field.type.ddl()}) is new"
    taken = {alias for field in new for alias in field.aliases}
    for name in before:
        if name not in now and name not in taken and name.lower() not in {each.lower() for each in now}:
            yield True, f"{above + name!r} is no longer declared"


def _of_the_same_name(old: tuple[Field, ...], new: tuple[Field, ...], above: str, version: int) -> Iterator[str]:
    """What an earlier version read under a name, and a field that has this name now would not take."""
    now = {name.lower(): (name, field) for field in new for name in field.names}
    for before, was in ((field, name) for field in old for name in field.names):
        name, field = now.get(was.lower(), (was, before))
        path, then = f"{above}{name}", f"in version {version}"
        if name != was:
            yield f"{path!r} differs from {above + was!r} {then} by case only, which Spark ignores"
        elif before.type.kind == field.type.kind == "struct":
            yield from _of_the_same_name(before.type.fields, field.type.fields, f"{path}.", version)
        elif not is_wider(before.type, field.type):
            yield (
                f"{path!r} was {before.type.ddl()} {then} and is {field.type.ddl()}, which does not hold every value "
                "of it"
            )
        if name == field.name == before.name and field.is_required and not before.is_required:
            yield f"{path!r} is NOT NULL now, and was not {then}: records that are valid without it would be invalid"


def _field(old: Field, new: Field, path: str) -> Iterator[Difference]:
    if old.type.kind == new.type.kind == "struct":
        yield from _fields(old.type.fields, new.type.fields, f"{path}.")
    elif old.type != new.type:
        change = f"{path!r} was {old.type.ddl()} and is {new.type.ddl()}"
        holds_all = is_wider(old.type, new.type)
        yield holds_all, change if holds_all else f"{change}, which does not hold every value of it"
    if old.is_required and not new.is_required:
        yield True, f"{path!r} is no longer NOT NULL"
    if new.is_required and not old.is_required:
        yield False, f"{path!r} is NOT NULL now: records that are valid without it would be invalid"
    if new.is_required and old.is_required and new.default is None and old.default is not None:
        yield False, f"{path!r} is NOT NULL and has no DEFAULT any more: records without it would be invalid"
    elif old.default != new.default:
        yield True, f"{path!r} has {_default(new)}, and had {_default(old)}"
    if old.aliases != new.aliases:
        gone = sorted(set(old.aliases) - set(new.names))
        if gone and new.is_required:
            yield False, f"{path!r} is NOT NULL, and its aliases {gone} are gone: records that have it there are valid"
        else:
            text = f"{path!r} has the aliases {list(new.aliases)}"
            yield True, f"{text}; {gone} are no longer read" if gone else text


def is_wider(old: FieldType, new: FieldType) -> bool:
    """Whether a type holds every value of another one, and as the same value."""
    if old == new:
        return True
    if old.kind in INTEGER_BITS:
        bits = INTEGER_BITS[old.kind]
        if new.kind in INTEGER_BITS:
            return INTEGER_BITS[new.kind] >= bits
        return new.kind == "double" and bits < BITS_OF_DOUBLE
    if old.kind != new.kind:
        return (old.kind, new.kind) == ("float", "double")
    match old.kind:
        case "decimal":
            return new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale
        case "array" | "map" if old.element and new.element:
            return is_wider(old.element, new.element)
        case "struct":
            now = {field.name: field.type for field in new.fields}
            return all(field.name in now and is_wider(field.type, now[field.name]) for field in old.fields)
    return False


def _default(field: Field) -> str:
    return "no DEFAULT" if field.default is None else f"the DEFAULT {field.default!r}"
