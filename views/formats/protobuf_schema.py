"""Protobuf schemas: the fields that a source has by its reader schema, and which messages of a writer it can read.

A message is read by the reader's numbers of fields, whoever wrote it; the writer's schema says which of its messages a
record is, and whether equal numbers mean the same. Whole numbers are read with 64 bits, whatever the reader schema
says: a writer may have widened a field.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from google.protobuf import descriptor_pb2, descriptor_pool

from views.errors import DeclarationError
from views.field_types import RESERVED_NAMES, Field, FieldType
from views.schemas.bounded_process import bounded
from views.schemas.protoc import BUNDLED, FOLDER, MAX_CPU_S, remove_leftovers

MAX_TEXT = 4_000_000
COMPILE_TIMEOUT_S = 60
OUT_OF_CPU = (-signal.SIGXCPU, -signal.SIGKILL)
PROTO = descriptor_pb2.FieldDescriptorProto
WIDER = {PROTO.TYPE_INT32: PROTO.TYPE_INT64, PROTO.TYPE_UINT32: PROTO.TYPE_UINT64, PROTO.TYPE_SINT32: PROTO.TYPE_SINT64}
UNSIGNED_64 = (PROTO.TYPE_UINT64, PROTO.TYPE_FIXED64)
SCALARS = {
    **dict.fromkeys(
        (
            PROTO.TYPE_INT32, PROTO.TYPE_INT64, PROTO.TYPE_UINT32, PROTO.TYPE_SINT32, PROTO.TYPE_SINT64,
            PROTO.TYPE_FIXED32, PROTO.TYPE_SFIXED32, PROTO.TYPE_SFIXED64,
        ),
        FieldType("bigint"),
    ),
    **dict.fromkeys(UNSIGNED_64, FieldType("decimal", precision=20)),
    PROTO.TYPE_FLOAT: FieldType("double"),
    PROTO.TYPE_DOUBLE: FieldType("double"),
    PROTO.TYPE_BOOL: FieldType("boolean"),
    PROTO.TYPE_STRING: FieldType("string"),
    PROTO.TYPE_BYTES: FieldType("string"),
    PROTO.TYPE_ENUM: FieldType("string"),
}  # fmt: skip
EXCHANGEABLE = (
    {PROTO.TYPE_INT32, PROTO.TYPE_INT64, PROTO.TYPE_UINT32, PROTO.TYPE_UINT64, PROTO.TYPE_BOOL, PROTO.TYPE_ENUM},
    {PROTO.TYPE_SINT32, PROTO.TYPE_SINT64},
    {PROTO.TYPE_STRING, PROTO.TYPE_BYTES},
    {PROTO.TYPE_FIXED32, PROTO.TYPE_SFIXED32},
    {PROTO.TYPE_FIXED64, PROTO.TYPE_SFIXED64},
)
"""Types whose bytes mean the same, as far as both can hold the value."""
TIMESTAMP = "google.protobuf.Timestamp"
WRAPPERS = tuple(
    f"google.protobuf.{each}Value"
    for each in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
DURATION = "google.protobuf.Duration"
JSON_VALUES = tuple(f"google.protobuf.{each}" for each in ("Struct", "Value", "ListValue"))
"""Any JSON, which is a text here."""
Indexes = tuple[int, ...]
"""Where a message stands in its file: (1, 0) is the first message within the second."""
REMEDY = "Leave it out of the reader schema: a field that it does not describe is skipped."


class ProtobufError(DeclarationError):
    """A schema that is none, or that a source cannot have."""


@dataclass(frozen=True)
class ProtobufReader:
    """What a source reads Protobuf by: the first message of its schema."""

    TYPE: ClassVar[str] = "PROTOBUF"

    files: bytes
    """A FileDescriptorSet, dependencies first."""
    message: str
    """Its full name."""
    fields: tuple[Field, ...]

    def widened(self) -> Any:
        """The message's descriptor, with whole numbers of 64 bits, in a pool of its own."""
        found = descriptor_pb2.FileDescriptorSet.FromString(self.files)
        for file in found.file:
            if not file.name.startswith("google/protobuf/"):
                for message in file.message_type:
                    _widen(message)
        return pool_of(found).FindMessageTypeByName(self.message)


def protobuf_reader(text: str) -> ProtobufReader:
    """The reader schema in a declaration. ProtobufError names the path of what cannot be a field."""
    files = compiled(text)
    file = pool_of(files).FindFileByName(files.file[-1].name)
    if not files.file[-1].message_type:
        raise ProtobufError("an event is a message; the reader schema has none.")
    message = file.message_types_by_name[files.file[-1].message_type[0].name]
    return ProtobufReader(files.SerializeToString(), message.full_name, _fields(message, "", ()))


def readable(reader: ProtobufReader, text: str, references: tuple[tuple[str, str], ...] = ()) -> dict[Indexes, str]:
    """For each message of a writer's schema why a source cannot read it; an empty text: it can."""
    files = compiled(text, references)
    file = pool_of(files).FindFileByName(files.file[-1].name)
    ours = pool_of(descriptor_pb2.FileDescriptorSet.FromString(reader.files)).FindMessageTypeByName(reader.message)
    found = {}
    for indexes, message in _messages(files.file[-1].message_type, file.message_types_by_name, ()):
        names = _without_package(message), _without_package(ours)
        if names[0] != names[1]:
            found[indexes] = f"it is of {names[0]!r}, and this source reads {names[1]!r}"
        else:
            found[indexes] = next(_differences(message, ours, "", set()), "")
    return found


@lru_cache(maxsize=256)
def compiled(text: str, references: tuple[tuple[str, str], ...] = ()) -> Any:
    """The schema's FileDescriptorSet, dependencies first. The text is a stranger's: protoc has a process of its own."""
    if len(text) > MAX_TEXT:
        raise ProtobufError(f"the schema has {len(text):,} characters; at most {MAX_TEXT:,} are taken.")
    remove_leftovers()
    with tempfile.TemporaryDirectory(prefix=FOLDER) as name:
        folder, out = Path(name, "in"), Path(name, "out")
        for path, content in (*references, ("tidemark_schema.proto", text)):
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or "\0" in path or not path:
                raise ProtobufError(f"the reference {path[:100]!r} is no relative path.")
            file = folder / path
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content, encoding="utf-8")
            except (OSError, ValueError):
                raise ProtobufError(f"the reference {path[:100]!r} cannot be the path of a file.") from None
        command = [sys.executable, "-I", "-m", "grpc_tools.protoc", f"-I{folder}", *BUNDLED, "--include_imports"]
        try:
            done = subprocess.run(
                bounded([*command, f"--descriptor_set_out={out}", "tidemark_schema.proto"], MAX_CPU_S),
                capture_output=True, text=True, errors="replace", timeout=COMPILE_TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ProtobufError(f"protoc took more than {COMPILE_TIMEOUT_S} s for the schema.") from None
        if done.returncode in OUT_OF_CPU:
            raise ProtobufError(f"protoc took more than {MAX_CPU_S} s of CPU time for the schema.")
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if ".proto:" in line and "warning:" not in line]
            why = said[0].removeprefix(f"{folder}/") if said else f"protoc ended with {done.returncode}"
            raise ProtobufError(f"the schema is not Protobuf: {why}")
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def pool_of(files: Any) -> Any:
    """A pool of its own: versions of one schema have the same names."""
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool


def is_map(field: Any) -> bool:
    """Whether a field is a map, which is written as repeated entries."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _widen(message: Any) -> None:
    for field in message.field:
        if field.type in WIDER:
            field.type = WIDER[field.type]
    for inner in message.nested_type:
        _widen(inner)


def _without_package(message: Any) -> str:
    return str(message.full_name).removeprefix(f"{message.file.package}.")


def _messages(protos: Any, by_name: Any, above: Indexes) -> Iterator[tuple[Indexes, Any]]:
    for number, proto in enumerate(protos):
        message = by_name[proto.name]
        yield (*above, number), message
        yield from _messages(proto.nested_type, message.nested_types_by_name, (*above, number))


# ---- fields of a source ----------------------------------------------


def _fields(message: Any, above: str, within: tuple[str, ...]) -> tuple[Field, ...]:
    where = above[:-1] or "the message"
    if message.full_name in within:
        raise ProtobufError(
            f"{where}: {message.full_name!r} contains itself; a table cannot have such a column. {REMEDY}"
        )
    fields = tuple(
        Field(each.name, _type(each, f"{above}{each.name}", (*within, message.full_name))) for each in message.fields
    )
    if not fields:
        raise ProtobufError(f"{where}: a message without fields holds nothing. {REMEDY}")
    lower = [field.name.lower() for field in fields]
    if twice := sorted({name for name in lower if lower.count(name) > 1}):
        raise ProtobufError(f"{where}: several fields are called {twice[0]!r} (Spark ignores case). {REMEDY}")
    if not above and (reserved := [name for name in lower if name in RESERVED_NAMES]):
        raise ProtobufError(f"the field name {reserved[0]!r} is reserved. Rename it: Protobuf goes by numbers.")
    return fields


def _type(field: Any, path: str, within: tuple[str, ...]) -> FieldType:
    if is_map(field):
        value = field.message_type.fields_by_name["value"]
        return FieldType("map", element=_single(value, f"{path}[]", within))
    if field.is_repeated:
        return FieldType("array", element=_single(field, f"{path}[]", within))
    return _single(field, path, within)


def _single(field: Any, path: str, within: tuple[str, ...]) -> FieldType:
    if field.type in SCALARS:
        return SCALARS[field.type]
    if field.type == PROTO.TYPE_MESSAGE:
        name = field.message_type.full_name
        if name == TIMESTAMP:
            return FieldType("timestamp")
        if name == DURATION:
            return FieldType("bigint")
        if name in JSON_VALUES:
            return FieldType("string")
        if name in WRAPPERS:
            return SCALARS[field.message_type.fields_by_name["value"].type]
        if not name.startswith("google.protobuf."):
            return FieldType("struct", fields=_fields(field.message_type, f"{path}.", within))
    raise ProtobufError(f"{path}: the type {_said(field)} is not supported in a source. {REMEDY}")


# ---- whether a writer means the same ---------------------------------


def _differences(writer: Any, reader: Any, above: str, seen: set[tuple[str, str]]) -> Iterator[str]:
    pair = writer.full_name, reader.full_name
    if pair in seen:
        return
    seen.add(pair)
    for field in reader.fields:
        other = writer.fields_by_number.get(field.number)
        if other is None:
            continue
        path = f"{above}{field.name}"
        is_message = (other.message_type is not None, field.message_type is not None)
        is_alike = other.type == field.type or any({other.type, field.type} <= each for each in EXCHANGEABLE)
        if not is_alike or is_map(other) != is_map(field):
            yield f"{path} is {_said(other)}, and this source reads {_said(field)}"
        elif all(is_message):
            names = other.message_type.full_name, field.message_type.full_name
            if names[0] != names[1] and any(name.startswith("google.protobuf.") for name in names):
                yield f"{path} is {_said(other)}, and this source reads {_said(field)}"
            else:
                yield from _differences(other.message_type, field.message_type, f"{path}.", seen)


def _said(field: Any) -> str:
    if field.message_type is not None:
        return "map" if is_map(field) else str(field.message_type.full_name)
    return str(PROTO.Type.Name(field.type)).removeprefix("TYPE_").lower()
