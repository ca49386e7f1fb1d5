"""Whether a Protobuf reader understands what a Protobuf writer wrote: fields are compared by their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

MAX_MESSAGES = 100

_Type = FieldDescriptor
_ENCODINGS: tuple[tuple[str, tuple[int, ...]], ...] = (
    (
        "varint",
        (_Type.TYPE_INT32, _Type.TYPE_INT64, _Type.TYPE_UINT32, _Type.TYPE_UINT64, _Type.TYPE_BOOL, _Type.TYPE_ENUM),
    ),
    ("zigzag", (_Type.TYPE_SINT32, _Type.TYPE_SINT64)),
    ("text or bytes", (_Type.TYPE_STRING, _Type.TYPE_BYTES)),
    ("32 bits", (_Type.TYPE_FIXED32, _Type.TYPE_SFIXED32)),
    ("64 bits", (_Type.TYPE_FIXED64, _Type.TYPE_SFIXED64)),
    ("float", (_Type.TYPE_FLOAT,)),
    ("double", (_Type.TYPE_DOUBLE,)),
    ("message", (_Type.TYPE_MESSAGE,)),
    ("group", (_Type.TYPE_GROUP,)),
)
ENCODING: Mapping[int, str] = {kind: name for name, kinds in _ENCODINGS for kind in kinds}
"""How the values of a type are encoded. Types of the same encoding may take each other's place."""

_NUMBERS = {"varint", "zigzag", "32 bits", "64 bits", "float", "double"}


def unreadable(reader: FileDescriptor, writer: FileDescriptor) -> list[str]:
    """What of the writer's messages the reader would misread, lose or refuse; empty if nothing."""
    comparison = _Comparison()
    if reader.package != writer.package:
        comparison.add("", f"the package is '{reader.package}', and was '{writer.package}': all types have other names")
    else:
        comparison.types(reader.message_types_by_name, writer.message_types_by_name, "")
    return comparison.problems[:MAX_MESSAGES]


class _Comparison:
    """Compares each pair of messages once, however often it is used: messages may hold themselves."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._seen: set[tuple[str, str]] = set()

    def add(self, path: str, problem: str) -> None:
        self.problems.append(f"{path or 'the file'}: {problem}")

    def types(self, readers: Mapping[str, Descriptor], writers: Mapping[str, Descriptor], path: str) -> None:
        """Messages of a file or of a message, by name."""
        for name, writer in writers.items():
            if _is_map_entry(writer):
                continue
            if name not in readers:
                self.add(path + name, "the message was removed. Keep it, if only empty")
            else:
                self.messages(readers[name], writer)

    def messages(self, reader: Descriptor, writer: Descriptor) -> None:
        pair = (reader.full_name, writer.full_name)
        if pair in self._seen or len(self.problems) >= MAX_MESSAGES:
            return
        self._seen.add(pair)
        old, new = _Fields(writer), _Fields(reader)
        path = _local_name(reader)
        self._oneofs(path, new, old)
        for number in sorted(old.by_number.keys() | new.by_number.keys()):
            self._fields(path, new, old, number)
        self.types(reader.nested_types_by_name, writer.nested_types_by_name, f"{path}.")

    def _oneofs(self, path: str, new: _Fields, old: _Fields) -> None:
        """Fields that could be set together, and now exclude each other."""
        for name, numbers in new.oneofs.items():
            origins = {old.oneof_of.get(number, number) for number in numbers if number in old.by_number}
            alone = sum(isinstance(origin, int) for origin in origins)
            if len(origins) > 1:
                moved = "several fields were" if alone > 1 else "a field or another oneof was"
                self.add(
                    f"{path}.{name}", f"{moved} moved into the oneof: of values that were set together, one is left"
                )

    def _fields(self, path: str, new: _Fields, old: _Fields, number: int) -> None:
        reader, writer = new.by_number.get(number), old.by_number.get(number)
        if writer is None:
            if reader is not None and reader.is_required:
                self.add(f"{path}.{reader.name}", f"the required field {number} was added: older messages lack it")
        elif reader is None:
            oneof = old.oneof_of.get(number)
            if writer.is_required:
                self.add(f"{path}.{writer.name}", f"the required field {number} was removed")
            elif oneof is not None and (oneof in new.oneofs or old.oneofs[oneof] & new.by_number.keys()):
                self.add(
                    f"{path}.{writer.name}", f"field {number} was removed from the oneof '{oneof}': its value is lost"
                )
        else:
            self._field(f"{path}.{reader.name}", new, old, number)

    def _field(self, path: str, new: _Fields, old: _Fields, number: int) -> None:
        reader, writer = new.by_number[number], old.by_number[number]
        if _is_map(reader) != _is_map(writer):
            self.add(path, f"field {number} is {_shown(reader)}, and was {_shown(writer)}")
        elif _is_map(reader):
            for part in ("key", "value"):
                inner, outer = reader.message_type.fields_by_name[part], writer.message_type.fields_by_name[part]
                self._values(f"{path}.{part}", inner, outer)
        elif self._values(path, reader, writer):
            self._labels(path, number, (reader, new.labels[number]), (writer, old.labels[number]))

    def _values(self, path: str, reader: FieldDescriptor, writer: FieldDescriptor) -> bool:
        """Compare the types of two fields; whether they are of one encoding."""
        if ENCODING[reader.type] != ENCODING[writer.type]:
            self.add(path, f"field {reader.number} is {_shown(reader)}, and was {_shown(writer)}")
            return False
        if reader.message_type is not None and writer.message_type is not None:
            if _local_name(reader.message_type) != _local_name(writer.message_type):
                self.add(path, f"field {reader.number} is {_shown(reader)}, and was {_shown(writer)}")
            else:
                self.messages(reader.message_type, writer.message_type)
        return True

    def _labels(
        self, path: str, number: int, reader: tuple[FieldDescriptor, str], writer: tuple[FieldDescriptor, str]
    ) -> None:
        new, old = reader[1], writer[1]
        if new == old:
            return
        if new == "required":
            self.add(path, f"field {number} is required, and was not: older messages may lack it")
        elif ENCODING[reader[0].type] in _NUMBERS and ("repeated" in (new, old) or "required" in (new, old)):
            self.add(
                path,
                f"field {number} is {new or 'singular'}, and was {old or 'singular'}: numbers are encoded otherwise",
            )


class _Fields:
    """The fields of a message by number, with the oneofs and labels that its text has."""

    def __init__(self, message: Descriptor) -> None:
        written = DescriptorProto()
        message.CopyToProto(written)
        self.by_number: dict[int, FieldDescriptor] = {field.number: field for field in message.fields}
        self.oneof_of = {
            field.number: written.oneof_decl[field.oneof_index].name
            for field in written.field
            if field.HasField("oneof_index") and not field.proto3_optional
        }
        self.oneofs: dict[str, set[int]] = {}
        for number, name in self.oneof_of.items():
            self.oneofs.setdefault(name, set()).add(number)
        self.labels = {number: _label(field) for number, field in self.by_number.items()}


def _label(field: FieldDescriptor) -> str:
    return "required" if field.is_required else "repeated" if field.is_repeated else ""


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and _is_map_entry(field.message_type)


def _is_map_entry(message: Descriptor) -> bool:
    return bool(message.GetOptions().map_entry)


def _local_name(message: Any) -> str:
    """The name of a type without the package of its file, which is compared by itself."""
    package = message.file.package
    return str(message.full_name).removeprefix(f"{package}." if package else "")


def _shown(field: FieldDescriptor) -> str:
    if _is_map(field):
        return "a map"
    if field.message_type is not None:
        return f"the {ENCODING[field.type]} {field.message_type.full_name}"
    return (
        f"an {name}" if (name := FieldDescriptorProto.Type.Name(field.type)[5:].lower())[0] in "aeiou" else f"a {name}"
    )
