"""Protobuf descriptors as text: the same descriptors have the same text, however their schema was written.

Comments are not in descriptors, and not in the text. Types are written by their full names, with a dot in front.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from google.protobuf import descriptor_pb2, text_format
from google.protobuf.message import Message
from google.protobuf.text_encoding import CEscape

_Field = descriptor_pb2.FieldDescriptorProto
MAX_FIELD_NUMBER = 2**29
MAX_ENUM_NUMBER = 2**31 - 1


def to_text(file: Any, *, normalize: bool = False) -> str:
    """The text of a FileDescriptorProto. With `normalize`, what has no order is sorted; messages keep theirs.

    Custom options are written if the class of the descriptor knows them.
    """
    return _Writer(file, normalize).file()


class _Writer:
    def __init__(self, file: Any, normalize: bool) -> None:
        self._file = file
        self._normalize = normalize
        self._syntax = file.syntax or "proto2"
        self._types = {message.name: message for message in file.message_type}

    def file(self) -> str:
        file = self._file
        text = ""
        if self._syntax == "editions":
            text += f'edition = "{descriptor_pb2.Edition.Name(file.edition).removeprefix("EDITION_")}";\n'
        elif self._syntax != "proto2" or not self._normalize:
            text += f'syntax = "{self._syntax}";\n'
        if file.package:
            text += f"package {file.package};\n"
        groups = {_simple(field) for field in _groups(file.extension, self._syntax)}
        messages = [message for message in file.message_type if message.name not in groups]
        sections = [
            self._imports(),
            "".join(f"option {option};\n" for option in self._options(file)),
            "".join(map(self._message, messages)) + "".join(map(self._enum, file.enum_type)),
            self._extends(file.extension, ()),
            "".join(map(self._service, file.service)),
        ]
        return "\n".join([text, *(section for section in sections if section)])

    def _imports(self) -> str:
        public, weak = set(self._file.public_dependency), set(self._file.weak_dependency)
        named = list(enumerate(self._file.dependency))
        if self._normalize:
            named.sort(key=lambda entry: entry[1])
        plain = [(path, "weak " if index in weak else "") for index, path in named if index not in public]
        kinds = plain + [(path, "public ") for index, path in named if index in public]
        return "".join(f"import {kind}{quoted(path)};\n" for path, kind in kinds)

    def _message(self, message: Any, heading: str = "") -> str:
        """A message, or a group, whose heading is that of its field."""
        nested = {inner.name: inner for inner in message.nested_type}
        inline = {name for name, inner in nested.items() if inner.options.map_entry}
        inline |= {_simple(field) for field in _groups([*message.field, *message.extension], self._syntax)}
        numbers = {inner.name: number for number, inner in enumerate(message.nested_type)}
        waiting = deque(inner for inner in message.nested_type if inner.name not in inline)

        def before(field: Any) -> str:
            """The nested messages in front of the one that this field brings along: their order is their number."""
            name, early = _simple(field), []
            while name in inline and waiting and numbers[waiting[0].name] < numbers[name]:
                early.append(waiting.popleft())
            return "".join(map(self._message, early))

        fields = [field for field in message.field if not _is_member(field)]
        sections = [
            self._reserved(message, MAX_FIELD_NUMBER, end_is_inclusive=False),
            "".join(f"option {option};\n" for option in self._options(message)),
            "".join(before(field) + self._field(field, nested) for field in self._by_number(fields)),
            "".join(self._oneofs(message, nested)),
            "".join(self._extension_ranges(message)),
            self._extends(message.extension, nested),
            "".join(map(self._message, waiting)) + "".join(map(self._enum, message.enum_type)),
        ]
        return _block(heading or f"message {message.name}", sections)

    def _oneofs(self, message: Any, nested: Any) -> Iterable[str]:
        members: dict[int, list[Any]] = {}
        for field in message.field:
            if _is_member(field):
                members.setdefault(field.oneof_index, []).append(field)
        oneofs = [(self._by_number(fields), message.oneof_decl[index]) for index, fields in sorted(members.items())]
        if self._normalize:
            oneofs.sort(key=lambda oneof: oneof[0][0].number)
        for fields, oneof in oneofs:
            options = "".join(f"option {option};\n" for option in self._options(oneof))
            yield _block(f"oneof {oneof.name}", [options, "".join(self._field(field, nested) for field in fields)])

    def _field(self, field: Any, nested: Any) -> str:
        label = self._label(field)
        entry = nested.get(_simple(field)) if field.type == _Field.TYPE_MESSAGE else None
        if entry is not None and entry.options.map_entry:
            label = ""
            kind = f"map<{_kind(entry.field[0])}, {_kind(entry.field[1])}>"
        elif field.type == _Field.TYPE_GROUP and self._syntax == "proto2":
            group = nested[_simple(field)]
            return self._message(group, f"{label}group {group.name} = {field.number}{self._in_brackets(field, ())}")
        else:
            kind = _kind(field)
        extra = []
        if field.HasField("default_value"):
            extra.append(f"default = {_default(field)}")
        if field.HasField("json_name") and field.json_name != _json_name(field.name) and not field.extendee:
            extra.append(f"json_name = {quoted(field.json_name)}")
        return f"{label}{kind} {field.name} = {field.number}{self._in_brackets(field, extra)};\n"

    def _label(self, field: Any) -> str:
        if field.label == _Field.LABEL_REPEATED:
            return "repeated "
        if _is_member(field) or self._syntax == "editions":
            return ""
        if self._syntax == "proto2":
            return "required " if field.label == _Field.LABEL_REQUIRED else "optional "
        return "optional " if field.proto3_optional else ""

    def _enum(self, enum: Any) -> str:
        values = sorted(enum.value, key=lambda value: (value.number, value.name)) if self._normalize else enum.value
        lines = [f"{value.name} = {value.number}{self._in_brackets(value, ())};\n" for value in values]
        options = "".join(f"option {option};\n" for option in self._options(enum))
        reserved = self._reserved(enum, MAX_ENUM_NUMBER, end_is_inclusive=True)
        return _block(f"enum {enum.name}", [reserved, options + "".join(lines)])

    def _reserved(self, holder: Any, end: int, *, end_is_inclusive: bool) -> str:
        quote = str if self._syntax == "editions" else quoted
        ranges = [(found.start, found.end if end_is_inclusive else found.end - 1) for found in holder.reserved_range]
        names = [quote(name) for name in holder.reserved_name]
        limit = end if end_is_inclusive else end - 1
        if self._normalize:
            ranges, names = sorted(ranges), sorted(names)
            return "".join(f"reserved {item};\n" for item in [*(_range(*found, limit) for found in ranges), *names])
        shown = [", ".join(_range(*found, limit) for found in ranges), ", ".join(names)]
        return "".join(f"reserved {items};\n" for items in shown if items)

    def _extension_ranges(self, message: Any) -> Iterable[str]:
        ranges = (
            sorted(message.extension_range, key=lambda found: found.start)
            if self._normalize
            else message.extension_range
        )
        for found in ranges:
            span = _range(found.start, found.end - 1, MAX_FIELD_NUMBER - 1)
            yield f"extensions {span}{self._in_brackets(found, ())};\n"

    def _extends(self, extensions: Sequence[Any], nested: Any) -> str:
        if self._normalize:
            extensions = sorted(extensions, key=lambda field: (field.extendee, field.number))
        groups = groupby(extensions, key=lambda field: field.extendee)
        types = nested or self._types
        return "".join(
            _block(f"extend {extendee}", ["".join(self._field(field, types) for field in fields)])
            for extendee, fields in groups
        )

    def _service(self, service: Any) -> str:
        options = "".join(f"option {option};\n" for option in self._options(service))
        return _block(f"service {service.name}", [options, "".join(map(self._method, service.method))])

    def _method(self, method: Any) -> str:
        request = f"{'stream ' if method.client_streaming else ''}{method.input_type}"
        response = f"{'stream ' if method.server_streaming else ''}{method.output_type}"
        heading = f"rpc {method.name} ({request}) returns ({response})"
        options = self._options(method)
        return _block(heading, ["".join(f"option {option};\n" for option in options)]) if options else f"{heading};\n"

    def _in_brackets(self, holder: Any, extra: Iterable[str]) -> str:
        options = [*self._options(holder), *extra]
        if not options:
            return ""
        if len(options) == 1:
            return f" [{options[0]}]"
        return " [\n" + ",\n".join(f"  {option}" for option in options) + "\n]"

    def _options(self, holder: Any) -> list[str]:
        shown = []
        for field, value in holder.options.ListFields():
            name = f"({field.full_name})" if field.is_extension else field.name
            values = value if field.is_repeated else [value]
            shown += [f"{name} = {_value(field, item)}" for item in values]
        return sorted(shown) if self._normalize else shown

    def _by_number(self, fields: list[Any]) -> list[Any]:
        return sorted(fields, key=lambda field: field.number) if self._normalize else fields


def _block(heading: str, sections: Iterable[str]) -> str:
    inner = "\n".join(section for section in sections if section)
    if not inner:
        return f"{heading} {{}}\n"
    return f"{heading} {{\n" + "".join(f"  {line}\n" if line else "\n" for line in inner.split("\n")[:-1]) + "}\n"


def _is_member(field: Any) -> bool:
    """Whether a field is in a oneof that the schema has; that of an optional field of proto3 is only in descriptors."""
    return bool(field.HasField("oneof_index")) and not field.proto3_optional


def _groups(fields: Iterable[Any], syntax: str) -> list[Any]:
    """The fields whose message is written where they are."""
    return [field for field in fields if field.type == _Field.TYPE_GROUP and syntax == "proto2"]


def _simple(field: Any) -> str:
    return str(field.type_name).rpartition(".")[2]


def _kind(field: Any) -> str:
    return str(field.type_name) or _Field.Type.Name(field.type).removeprefix("TYPE_").lower()


def _default(field: Any) -> str:
    if field.type == _Field.TYPE_STRING:
        return quoted(field.default_value)
    # The default of bytes is escaped in descriptors already.
    return f'"{field.default_value}"' if field.type == _Field.TYPE_BYTES else str(field.default_value)


def _value(field: Any, value: Any) -> str:
    if isinstance(value, Message):
        return f"{{ {text_format.MessageToString(value, as_one_line=True)} }}"
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return f'"{CEscape(value, as_utf8=False)}"'
    return quoted(value) if isinstance(value, str) else repr(value)


def _range(start: int, end: int, limit: int) -> str:
    if start == end:
        return str(start)
    return f"{start} to {'max' if end >= limit else end}"


def quoted(text: str) -> str:
    """A text between quotes, as Protobuf reads it."""
    return f'"{CEscape(text, as_utf8=True)}"'


def _json_name(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)
