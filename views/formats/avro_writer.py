"""The schemas that wrote Avro records: learned with what they refer to, and refused where no decoder should follow.

Their texts are strangers'. Decoders recurse through a schema, some of them in C: one that contains itself would let the
bytes of a record say how deep they go, and a few named types that each use the next one twice are millions of values in
a record without bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from views.formats.avro_schema import MAX_DEPTH, MAX_TYPES, TOO_MANY_TYPES, Json, Names, SchemaError, parsed


def plain_writer(text: str, references: tuple[tuple[str, str], ...] = ()) -> Json:
    """A writer's schema, in its plain form, with the schemas that it refers to put where they are needed first."""
    schema, names = learned(text, references)
    return plain(schema, names, set(), "")


def learned(text: str, references: tuple[tuple[str, str], ...] = ()) -> tuple[Json, Names]:
    """A schema, and the named types of it and of those that it refers to.

    SchemaError for what is no Avro, for types that contain themselves, and for what is too deep or too large.
    """
    names = Names()
    for _, other in references:
        names.learn(parsed(other), "", "")
    schema = parsed(text)
    names.learn(schema, "", "")
    _extent(schema, names, {}, 0)
    return schema, names


def plain(schema: Json, names: Names, done: set[str], path: str) -> Json:
    """What bytes depend on. `done`: names of types that were written out before."""
    found = names.resolve(schema, path)
    if isinstance(found, list):
        return [plain(each, names, done, path) for each in found]
    match found["type"]:
        case "record" | "error" | "enum" | "fixed":
            return _named(found, names, done, path)
        case "array":
            check_elements(found, names)
            return {"type": "array", "items": plain(found["items"], names, done, f"{path}[]")}
        case "map":
            return {"type": "map", "values": plain(found["values"], names, done, f"{path}[]")}
    return found["type"]


def _named(found: dict[str, Any], names: Names, done: set[str], path: str) -> Json:
    full = names.full[id(found)]
    if full in done:
        return full
    done.add(full)
    made: dict[str, Any] = {"type": "record" if found["type"] == "error" else found["type"], "name": full}
    match made["type"]:
        case "record":
            made["fields"] = [
                {"name": each["name"], "type": plain(each["type"], names, done, path)} for each in found["fields"]
            ]
        case "enum":
            made["symbols"] = found["symbols"]
        case "fixed":
            made["size"] = found["size"]
    return made


def check_elements(array: dict[str, Any], names: Names) -> None:
    """Refuse an array whose elements take no bytes."""
    if _takes_no_bytes(array["items"], names, 0):
        raise SchemaError("it has arrays of elements without bytes: a short record could have any number")


def _takes_no_bytes(schema: Json, names: Names, depth: int) -> bool:
    found = names.resolve(schema)
    if depth > MAX_DEPTH or isinstance(found, list):
        return False
    if found["type"] in ("record", "error"):
        return all(_takes_no_bytes(each["type"], names, depth + 1) for each in found["fields"])
    return bool(found["type"] == "null" or (found["type"] == "fixed" and found["size"] == 0))


# ---- how far a schema extends -----------------------------------------


class Extent(NamedTuple):
    """Of a schema: its levels, and its types."""

    depth: int
    types: int


def _extent(schema: Json, names: Names, known: dict[str, Extent | None], above: int) -> Extent:
    """`known` has the named types; None for those that this one is within."""
    found = names.resolve(schema)
    full = names.full.get(id(found)) if isinstance(found, dict) else None
    if full is not None and full in known:
        extent = known[full]
        if extent is None:
            raise SchemaError(f"it has the type {full!r}, which contains itself: a record could be of any depth")
    else:
        if full is not None:
            known[full] = None
        inner = [_extent(each, names, known, above + 1) for each in _parts(found)] if above <= MAX_DEPTH else []
        extent = Extent(1 + max((each.depth for each in inner), default=0), 1 + sum(each.types for each in inner))
        if full is not None:
            known[full] = extent
    if above + extent.depth > MAX_DEPTH + 1:
        raise SchemaError(f"it is nested deeper than {MAX_DEPTH} levels")
    if extent.types > MAX_TYPES:
        raise SchemaError(TOO_MANY_TYPES)
    return extent


def _parts(found: Any) -> list[Json]:
    if isinstance(found, list):
        return found
    match found["type"]:
        case "record" | "error":
            return [each["type"] for each in found["fields"]]
        case "array":
            return [found["items"]]
        case "map":
            return [found["values"]]
    return []
