"""What a Protobuf reader schema reads, however it is written, and whether another one may follow it.

Records are read by the numbers of fields. Two schemas with the same meaning read every record alike; one may follow
another if whatever the old one read, the new one reads, as the same value of the same field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2

from views.formats.protobuf_schema import PROTO, WIDER, ProtobufReader, is_map, pool_of

Json = Any
Difference = tuple[bool, str]
"""Whether it is allowed, and what it is."""


def meaning_of(reader: ProtobufReader) -> Json:
    """What a reader schema means: its fields by number, messages where they are used."""
    message = pool_of(descriptor_pb2.FileDescriptorSet.FromString(reader.files)).FindMessageTypeByName(reader.message)
    return {"name": str(message.full_name).removeprefix(f"{message.file.package}."), **_message(message)}


def differences(old: Json, new: Json, *, is_framed: bool) -> Iterator[Difference]:
    """What differs between the meanings of two reader schemas. The name of a message counts where a frame names it."""
    if is_framed and old["name"] != new["name"]:
        yield False, f"the message was {old['name']!r} and is {new['name']!r}: all records so far would be invalid"
    yield from _fields(old["fields"], new["fields"], "")


def _message(message: Any) -> dict[str, Any]:
    return {"fields": {str(each.number): _field(each) for each in message.fields}}


def _field(field: Any) -> dict[str, Any]:
    if is_map(field):
        key, value = (_type(field.message_type.fields_by_name[name]) for name in ("key", "value"))
        return {"name": field.name, "many": "map", **({} if key == "string" else {"key": key}), "type": value}
    if field.is_repeated:
        return {"name": field.name, "many": "array", "type": _type(field)}
    required = {"required": True} if field.is_required else {}
    return {"name": field.name, "type": _type(field), "nullable": field.has_presence, **required}


def _type(field: Any) -> Json:
    if field.message_type is not None:
        name = str(field.message_type.full_name)
        return name if name.startswith("google.protobuf.") else _message(field.message_type)
    if field.enum_type is not None:
        constants = {str(number): each.name for number, each in field.enum_type.values_by_number.items()}
        first = field.enum_type.values[0]
        return {"constants": constants, "first": first.name, "is_closed": bool(field.enum_type.is_closed)}
    # Of int32 and int64 the column is the same; that of uint32 is a bigint, and that of uint64 a decimal.
    wide = field.type if field.type == PROTO.TYPE_UINT32 else WIDER.get(field.type, field.type)
    return str(PROTO.Type.Name(wide)).removeprefix("TYPE_").lower()


# ---- what differs ----------------------------------------------------


def _fields(old: Json, new: Json, above: str) -> Iterator[Difference]:
    numbers, numbers_now = ({field["name"]: number for number, field in each.items()} for each in (old, new))
    for number, field in new.items():
        path, before = f"{above}{field['name']}", numbers.get(field["name"])
        if before is not None and before != number:
            yield False, f"{path!r} had the number {before} and has {number}: records so far have it under {before}"
        elif number in old:
            was = above + old[number]["name"]
            if before is None and was.lower() == path.lower():
                yield False, f"{path!r} differs from {was!r} by case only, which Spark ignores"
            elif before is None:
                yield True, f"{path!r} is the new name of {was!r}"
            yield from _same_field(old[number], field, path)
        elif field.get("required"):
            yield False, f"{path!r} is new and required: all records so far would be invalid"
        elif other := next((each for each in numbers if each.lower() == field["name"].lower()), None):
            yield False, f"{path!r} differs from {above + other!r} by case only, which Spark ignores"
        else:
            yield True, f"{path!r} ({_said(field)}) is new"
    for number, field in old.items():
        if number not in new and field["name"] not in numbers_now:
            yield True, f"{above + field['name']!r} is no longer declared"


def _same_field(old: Json, new: Json, path: str) -> Iterator[Difference]:
    kinds = [(each.get("many"), _kind(each["type"]), each.get("key")) for each in (old, new)]
    if [kind for _, kind, _ in kinds] == ["uint32", "uint64"] and kinds[0][::2] == kinds[1][::2]:
        yield True, f"{path!r} was {_said(old)} and is {_said(new)}: a decimal(20,0) in place of a bigint"
    elif kinds[0] != kinds[1]:
        yield False, f"{path!r} was {_said(old)} and is {_said(new)}, which does not read every value of it as the same"
        return
    if kinds[0][1] == "message":
        yield from _fields(old["type"]["fields"], new["type"]["fields"], f"{path}{'[]' if 'many' in new else ''}.")
    elif kinds[0][1] == "enum" and old["type"] != new["type"]:
        yield from _enums(old["type"], new["type"], path)
    if new.get("required") and not old.get("required"):
        yield False, f"{path!r} is required now: records that are valid without it would be invalid"
    elif old.get("required") and not new.get("required"):
        yield True, f"{path!r} is no longer required"
    if old.get("nullable") != new.get("nullable"):
        yield True, f"{path!r} {_absent(new)} where it is absent, and was {_absent(old).removeprefix('is ')}"


def _enums(old: Json, new: Json, path: str) -> Iterator[Difference]:
    if old["is_closed"] != new["is_closed"]:
        yield False, f"{path!r} has an enum of another syntax: records with unknown constants would say something else"
    for number, name in new["constants"].items():
        before = next((each for each, named in old["constants"].items() if named == name), None)
        if before is not None and before != number:
            yield False, f"{path!r}: the constant {name!r} was {before} and is {number}"
        elif number not in old["constants"]:
            yield True, f"{path!r} has the constant {name!r} now"
        elif old["constants"][number] != name:
            yield True, f"{path!r}: the constant {number} was {old['constants'][number]!r} and is {name!r}"
    for number, name in old["constants"].items():
        if number not in new["constants"]:
            is_lost = new["is_closed"]
            yield (
                not is_lost,
                f"{path!r} has the constant {name!r} no longer: "
                + ("records with it would say something else" if is_lost else f"it is read as {number!r}"),
            )
    if old["first"] != new["first"] and old["constants"] == new["constants"]:
        yield False, f"{path!r}: an absent one was {old['first']!r} and is {new['first']!r}"


def _absent(field: Json) -> str:
    return "is null" if field["nullable"] else "is its default"


def _kind(type_: Json) -> str:
    if isinstance(type_, str):
        return type_
    return "message" if "fields" in type_ else "enum"


def _said(field: Json) -> str:
    kind = _kind(field["type"])
    by = f" by {field['key']}" if "key" in field else ""
    return f"{field['many']}{by} of {kind}" if "many" in field else kind
