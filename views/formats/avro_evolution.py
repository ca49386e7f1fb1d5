"""What an Avro reader schema reads, however it is written, and whether another one may follow it.

Two schemas with the same meaning read every record alike: docs, white space, namespaces, the order of fields and what
else no record depends on are no part of it. One may follow another if whatever the old one read, the new one reads, as
the same value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from views.field_types import FieldType
from views.formats.avro_resolution import logical_meaning
from views.formats.avro_schema import LOCAL_TIMES, NAMED, Names, parsed, type_of, unqualified

Json = Any
Difference = tuple[bool, str]
"""Whether it is allowed, and what it is."""


def meaning_of(text: str) -> Json:
    """What a reader schema means: named types where they are used, by all names that they read.

    `{"type": "record", "name": "shop.Order", "aliases": ["Sale"], "fields": [{"name": "n", "type": "int"}]}` ->
    `{"kind": "record", "names": ["Order", "Sale"], "fields": {"n": {"names": ["n"], "type": {"kind": "bigint"}}}}`
    """
    names, schema = Names(), parsed(text)
    names.learn(schema, "", "")
    return _meaning(schema, names)


def bytes_of(text: str) -> Json:
    """What the bytes of records depend on that a schema wrote: types by position, with the names that they have."""
    names, schema = Names(), parsed(text)
    names.learn(schema, "", "")
    return _bytes(schema, names)


def differences(old: Json, new: Json) -> Iterator[Difference]:
    """What differs between the meanings of two reader schemas."""
    yield from _types(old, new, "")


def is_written_alike(old: Json, new: Json) -> bool:
    """Whether records of two schemas, as `bytes_of` has them, are the same bytes with the same or renamed fields."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(is_written_alike, old, new))
    if not isinstance(old, dict) or not isinstance(new, dict) or old.keys() != new.keys():
        return bool(old == new)
    if "record" not in old:
        return all(is_written_alike(old[kind], new[kind]) for kind in old)
    fields = list(zip(old["record"], new["record"], strict=False))
    return len(old["record"]) == len(new["record"]) and all(
        before[0] in names and is_written_alike(old_type, new_type) for (before, old_type), (names, new_type) in fields
    )


def _meaning(schema: Json, names: Names) -> dict[str, Any]:
    found = names.resolve(schema)
    if isinstance(found, list):
        rest = [each for each in found if each != "null" and each != {"type": "null"}]
        return {**_meaning(rest[0], names), **({"nullable": True} if len(rest) < len(found) else {})}
    kind = "record" if found["type"] == "error" else found["type"]
    named = {"names": sorted({unqualified(each) for each in _all_names(found)})} if kind in NAMED else {}
    match kind:
        case "record":
            fields = {each["name"]: _field(each, names) for each in found["fields"]}
            return {"kind": kind, **named, "fields": fields}
        case "array" | "map":
            part = found["items" if kind == "array" else "values"]
            return {"kind": kind, "of": _meaning(part, names)}
        case "enum":
            default = {"default": found["default"]} if "default" in found else {}
            return {"kind": kind, **named, "symbols": sorted(found["symbols"]), **default}
        case "bytes" if found.get("logicalType") != "decimal":
            return {"kind": "bytes as a text"}
        case "fixed" if found.get("logicalType") != "decimal":
            return {"kind": f"{found['size']} bytes as a text", **named}
        case "bytes" | "fixed":
            size = {"size": found["size"]} if kind == "fixed" else {}
            return {"kind": kind, **named, **size, "precision": found["precision"], "scale": found.get("scale", 0)}
    said = logical_meaning(found)
    if said and said[0] in LOCAL_TIMES:
        return {"kind": said[0]}
    return {"kind": type_of(found, names, "").ddl(), **({"logical": said[0]} if said else {})}


def _bytes(schema: Json, names: Names) -> Json:
    found = names.resolve(schema)
    if isinstance(found, list):
        return [_bytes(each, names) for each in found]
    match found["type"]:
        case "record" | "error":
            return {"record": [[_all_names(each), _bytes(each["type"], names)] for each in found["fields"]]}
        case "array" | "map" as kind:
            return {kind: _bytes(found["items" if kind == "array" else "values"], names)}
        case "enum":
            return {"enum": found["symbols"]}
        case "fixed":
            return {"fixed": found["size"]}
    return found["type"]


def _field(field: dict[str, Any], names: Names) -> dict[str, Any]:
    default = {"default": field["default"]} if "default" in field else {}
    return {"names": _all_names(field), "type": _meaning(field["type"], names), **default}


def _all_names(named: dict[str, Any]) -> list[str]:
    return [named["name"], *named.get("aliases", ())]


# ---- what differs ----------------------------------------------------


def _types(old: Json, new: Json, path: str) -> Iterator[Difference]:
    where = repr(path) if path else "the record"
    if old["kind"] != new["kind"]:
        yield False, f"{where} was {_said(old)} and is {_said(new)}, which does not read every value of it"
        return
    if new.get("nullable") != old.get("nullable"):
        if new.get("nullable"):
            yield True, f"{where} may be null now"
        else:
            yield False, f"{where} may not be null any more: records with a null would be invalid"
    yield from _named(old, new, where)
    match new["kind"]:
        case "record":
            yield from _fields(old["fields"], new["fields"], f"{path}." if path else "")
        case "array" | "map":
            yield from _types(old["of"], new["of"], f"{path}[]")
        case "enum":
            yield from _enums(old, new, where)
        case "bytes" | "fixed":
            yield from _decimals(old, new, where)
    if old.get("logical") != new.get("logical"):
        change = f"{where} was {_said(old)} and is {_said(new)}"
        is_allowed = "logical" not in new
        yield is_allowed, change if is_allowed else f"{change}: records of other logical types would be invalid"


def _named(old: Json, new: Json, where: str) -> Iterator[Difference]:
    before, now = set(old.get("names", ())), set(new.get("names", ()))
    if gone := sorted(before - now):
        yield (
            False,
            f"{where} is no longer of {_list(gone)}: such records would be invalid. Keep the name among its aliases",
        )
    if added := sorted(now - before):
        yield True, f"{where} is also of {_list(added)}"


def _fields(old: Json, new: Json, above: str) -> Iterator[Difference]:
    for name, field in new.items():
        path = f"{above}{name}"
        if name in old:
            yield from _same_field(old[name], field, path)
        elif (renamed := next((each for each in field["names"] if each in old and each not in new), None)) is not None:
            if renamed.lower() == name.lower():
                yield False, f"{path!r} differs from {above + renamed!r} by case only, which Spark ignores"
            else:
                yield True, f"{path!r} is the new name of {above + renamed!r}"
            yield from _same_field(old[renamed], field, path)
        elif other := next((each for each in old if each.lower() == name.lower()), None):
            yield False, f"{path!r} differs from {above + other!r} by case only, which Spark ignores"
        elif "default" not in field:
            yield (
                False,
                f"{path!r} is new and has no default: records of writers without it would be invalid. Give it one",
            )
        else:
            yield True, f"{path!r} ({_said(field['type'])}) is new"
    owners: dict[str, str] = {}
    for name, field in new.items():
        for each in field["names"]:
            if owners.setdefault(each, name) != name:
                both = _list([f"{above}{owners[each]}", f"{above}{name}"])
                yield False, f"{above + each!r} is a name of {both}: which of them reads it would depend on the record"
    taken = owners.keys()
    for name in old:
        if name not in taken and name.lower() not in {each.lower() for each in new}:
            yield True, f"{above + name!r} is no longer declared"


def _same_field(old: Json, new: Json, path: str) -> Iterator[Difference]:
    yield from _types(old["type"], new["type"], path)
    has_default, had_default = "default" in new, "default" in old
    if had_default and not has_default:
        yield False, f"{path!r} has no default any more: records of writers without it would be invalid"
    elif has_default and (not had_default or repr(old["default"]) != repr(new["default"])):
        before = f"the default {old['default']!r}" if had_default else "no default"
        yield True, f"{path!r} has the default {new['default']!r}, and had {before}"
    gone = sorted(set(old["names"]) - set(new["names"]))
    if gone and not has_default:
        yield False, f"{path!r} has no default, and its aliases {gone} are gone: records that have it there are valid"
    elif gone:
        yield True, f"{path!r} is no longer read as {_list(gone)}"
    elif old["names"][1:] != new["names"][1:] and old["names"][0] == new["names"][0]:
        yield True, f"{path!r} has the aliases {new['names'][1:]}"


def _enums(old: Json, new: Json, where: str) -> Iterator[Difference]:
    before, now = set(old["symbols"]), set(new["symbols"])
    if added := sorted(now - before):
        yield True, f"{where} has the symbols {added} now"
    gone = sorted(before - now)
    if gone and "default" not in new:
        yield False, f"{where} has no longer the symbols {gone}, and no default: records with them would be invalid"
    elif gone:
        yield True, f"{where} has no longer the symbols {gone}: they are read as {new['default']!r}"
    if "default" in old and "default" not in new:
        yield False, f"{where} has no default symbol any more: records with unknown symbols would be invalid"
    elif old.get("default") != new.get("default"):
        before_said = f"{old['default']!r}" if "default" in old else "none"
        yield True, f"{where} has the default symbol {new['default']!r}, and had {before_said}"


def _decimals(old: Json, new: Json, where: str) -> Iterator[Difference]:
    change = f"{where} was {_said(old)} and is {_said(new)}"
    if old["scale"] != new["scale"] or old.get("size") != new.get("size"):
        yield False, f"{change}: Avro reads no other scale or size, so that records would be invalid"
    elif old["precision"] > new["precision"]:
        yield False, f"{change}, which does not hold every value of it"
    elif old["precision"] < new["precision"]:
        yield True, change


def _said(type_: Json) -> str:
    kind: str = type_["kind"]
    if kind in ("bytes", "fixed"):
        size = f" in {type_['size']} bytes" if "size" in type_ else ""
        return f"{FieldType('decimal', precision=type_['precision'], scale=type_['scale']).ddl()}{size}"
    if kind in NAMED:
        return f"the {kind} {' or '.join(type_['names'])}"
    return str(type_.get("logical", kind))


def _list(names: list[str]) -> str:
    return ", ".join(map(repr, names))
