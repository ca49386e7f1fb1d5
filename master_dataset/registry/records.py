"""The records of the topic `_schemas`, byte for byte as Confluent's schema registry writes them.

    SchemaKey("web-value", 1)  ->  {"keytype":"SCHEMA","subject":"web-value","version":1,"magic":1}

The topic is compacted by key, so a key needs its fields in Confluent's order. A record without a value removes its key.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from master_dataset.errors import MasterDatasetError
from master_dataset.registry.schemas import AVRO, Reference, Schema, guid

MAX_INT32 = 2**31 - 1


class UnreadableRecord(MasterDatasetError):
    """A record of `_schemas` that is not what Confluent's registry writes."""


@dataclass(frozen=True)
class SchemaKey:
    """The key of one version of a subject."""

    subject: str
    version: int


@dataclass(frozen=True)
class ConfigKey:
    """The key of the compatibility level of a subject; of all others, without one."""

    subject: str | None = None


@dataclass(frozen=True)
class ModeKey:
    """The key of the mode of a subject; of all others, without one."""

    subject: str | None = None


@dataclass(frozen=True)
class DeleteSubjectKey:
    """The key of the soft delete of a whole subject."""

    subject: str


@dataclass(frozen=True)
class HighestIdKey:
    """The key of the highest id that was ever given.

    Confluent's registry ignores every NOOP, whatever its value. The order of the fields tells this one from those that
    it writes itself, which compaction would put in its place.
    """


@dataclass(frozen=True)
class OtherKey:
    """The key of a record that changes nothing here: NOOP, or a feature that this registry does not have."""

    keytype: str


@dataclass(frozen=True)
class SchemaVersion:
    """One version of a subject: the value of a `SchemaKey`."""

    subject: str
    version: int
    id: int
    schema: Schema
    deleted: bool = False
    md5: bytes | None = None

    @property
    def guid(self) -> str | None:
        """The globally unique id of its content, where that is known."""
        md5 = self.md5 or self.schema.md5
        return None if md5 is None else guid(md5)


@dataclass(frozen=True)
class Config:
    """The value of a `ConfigKey`."""

    compatibility_level: str


@dataclass(frozen=True)
class Mode:
    """The value of a `ModeKey`."""

    mode: str


@dataclass(frozen=True)
class DeleteSubject:
    """The value of a `DeleteSubjectKey`: all versions up to this one are soft-deleted."""

    version: int


@dataclass(frozen=True)
class HighestId:
    """The value of a `HighestIdKey`: no new schema gets this id or a lower one."""

    id: int


Key = SchemaKey | ConfigKey | ModeKey | DeleteSubjectKey | HighestIdKey | OtherKey
Value = SchemaVersion | Config | Mode | DeleteSubject | HighestId


@dataclass(frozen=True)
class Record:
    """A record, read. Without a value it removes its key."""

    key: Key
    value: Value | None


def version_record(version: SchemaVersion) -> Record:
    """The record that stores a version."""
    return Record(SchemaKey(version.subject, version.version), version)


NOOP = Record(OtherKey("NOOP"), None)
"""Changes nothing: who reads it back has read everything before it."""


def encode(record: Record) -> tuple[bytes, bytes | None]:
    """A record as the bytes of its key and value."""
    value = None if record.value is None else _dump(_value_members(record.key, record.value))
    return _dump(_key_members(record.key)), value


def decode(key: bytes | None, value: bytes | None) -> Record:
    """The record of these bytes. Raises `UnreadableRecord` for what Confluent's registry would not have written."""
    try:
        return _decoded(key, value)
    except (ValueError, RecursionError) as error:
        raise UnreadableRecord(
            f"A record of _schemas cannot be understood: {error}. Its key is {_shown(key)}."
        ) from None


def _decoded(key: bytes | None, value: bytes | None) -> Record:
    members = _load(key, "key")
    match _text(members, "keytype"):
        case "SCHEMA":
            schema_key = SchemaKey(_text(members, "subject"), _number(members, "version"))
            return Record(schema_key, None if value is None else _read_version(schema_key, _load(value, "value")))
        case "CONFIG":
            config = ConfigKey(_optional_text(members, "subject"))
            return Record(config, None if value is None else _read_config(_load(value, "value")))
        case "MODE":
            mode = ModeKey(_optional_text(members, "subject"))
            return Record(mode, None if value is None else Mode(_text(_load(value, "value"), "mode")))
        case "DELETE_SUBJECT":
            delete = DeleteSubjectKey(_text(members, "subject"))
            return Record(delete, None if value is None else DeleteSubject(_number(_load(value, "value"), "version")))
        case "NOOP" if next(iter(members)) == "magic" and value is not None:
            return Record(HighestIdKey(), HighestId(_number(_load(value, "value"), "highestId")))
        case keytype:
            return Record(OtherKey(keytype), None)


def _key_members(key: Key) -> dict[str, Any]:
    match key:
        case SchemaKey(subject, version):
            return {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
        case ConfigKey(subject):
            return {"keytype": "CONFIG", **_given(subject=subject), "magic": 0}
        case ModeKey(subject):
            return {"keytype": "MODE", **_given(subject=subject), "magic": 0}
        case DeleteSubjectKey(subject):
            return {"keytype": "DELETE_SUBJECT", "subject": subject, "magic": 0}
        case HighestIdKey():
            return {"magic": 0, "keytype": "NOOP"}
        case OtherKey(keytype):
            return {"keytype": keytype, "magic": 0}


def _value_members(key: Key, value: Value) -> dict[str, Any]:
    subject = _given(subject=getattr(key, "subject", None))
    match value:
        case SchemaVersion():
            return _version_members(value)
        case Config(level):
            return {**subject, "compatibilityLevel": level}
        case Mode(mode):
            return {**subject, "mode": mode}
        case DeleteSubject(version):
            return {**subject, "version": version}
        case HighestId(highest):
            return {"highestId": highest}


def _version_members(version: SchemaVersion) -> dict[str, Any]:
    schema, md5 = version.schema, version.md5 or version.schema.md5
    references = [
        {"name": reference.name, "subject": reference.subject, "version": reference.version}
        for reference in schema.references
    ]
    return {
        "subject": version.subject,
        "version": version.version,
        "id": version.id,
        **_given(
            md5=None if md5 is None else base64.b64encode(md5).decode(),
            schemaType=None if schema.type == AVRO else schema.type,
            references=references or None,
            metadata=None if schema.metadata is None else json.loads(schema.metadata),
            ruleSet=None if schema.rule_set is None else json.loads(schema.rule_set),
        ),
        "schema": schema.text,
        "deleted": version.deleted,
    }


def _read_version(key: SchemaKey, members: dict[str, Any]) -> SchemaVersion:
    references = members.get("references") or []
    if not isinstance(references, list) or not all(isinstance(reference, dict) for reference in references):
        raise UnreadableRecord(f"{key}: references are an array of objects; found {_shown(references)}.")
    schema = Schema(
        _text(members, "schema"),
        _optional_text(members, "schemaType") or AVRO,
        tuple(Reference(_text(each, "name"), _text(each, "subject"), _number(each, "version")) for each in references),
        _kept(members, "metadata"),
        _kept(members, "ruleSet"),
    )
    md5 = _digest(_optional_text(members, "md5")) or schema.md5
    return SchemaVersion(key.subject, key.version, _number(members, "id"), schema, members.get("deleted") is True, md5)


def _kept(members: dict[str, Any], name: str) -> str | None:
    text = kept_json(members.get(name))
    if text is not None and not _is_utf8(text):
        raise UnreadableRecord(f"{name!r} in a record of _schemas is Unicode; found {_shown(text)}.")
    return text


def _read_config(members: dict[str, Any]) -> Config | None:
    """None for a configuration that has other settings only, such as an alias."""
    level = _optional_text(members, "compatibilityLevel")
    return None if level is None else Config(level)


def _digest(text: str | None) -> bytes | None:
    try:
        digest = base64.b64decode(text or "", validate=True)
    except ValueError:  # no base64, or no ASCII
        return None
    return digest if len(digest) == 16 else None


def kept_json(value: Any) -> str | None:
    """Metadata or rules as the text by which they are compared."""
    return None if value is None else json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _given(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def _dump(members: dict[str, Any]) -> bytes:
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()


def _load(content: bytes | None, part: str) -> dict[str, Any]:
    try:
        members = json.loads(content or b"")
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, dict):
        raise UnreadableRecord(f"The {part} of a record of _schemas is a JSON object; found {_shown(content)}.")
    return members


def _text(members: dict[str, Any], name: str) -> str:
    if not isinstance(value := members.get(name), str) or not _is_utf8(value):
        raise UnreadableRecord(f"{name!r} in a record of _schemas is a string of Unicode; found {_shown(value)}.")
    return value


def _is_utf8(text: str) -> bool:
    """False for half of a surrogate pair: JSON can say it, and no answer could."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _optional_text(members: dict[str, Any], name: str) -> str | None:
    return None if members.get(name) is None else _text(members, name)


def _number(members: dict[str, Any], name: str) -> int:
    value = members.get(name)
    if type(value) is not int or not -MAX_INT32 <= value <= MAX_INT32:
        raise UnreadableRecord(f"{name!r} in a record of _schemas is a 32-bit integer; found {_shown(value)}.")
    return value


def _shown(value: object) -> str:
    return repr(value)[:100]
