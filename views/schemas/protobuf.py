"""Protobuf schemas: texts, or descriptors in base64, and what both say."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from views.schemas import protobuf_compatibility, protobuf_text
from views.schemas.model import PROTOBUF, InvalidSchema, NamedSchema, ParsedSchema, check_sizes
from views.schemas.protoc import ROOT, check_path, compile_text

CACHED = 100
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_DESCRIPTORS = "google/protobuf/descriptor.proto"
_EDITIONS = (1000,)  # 2023; later ones have words that are not written here


class ProtobufSchema(ParsedSchema):
    """A Protobuf schema: one file, and the files that it imports."""

    type = PROTOBUF

    def __init__(self, text: str, references: Sequence[NamedSchema] = ()) -> None:
        check_sizes(PROTOBUF, text, references)
        imports = _imports(references)
        descriptor = _descriptor(text)
        if descriptor is not None:
            text = _checked_text(descriptor, imports)
        self.file_set = FileDescriptorSet.FromString(_compiled(text, imports))
        _refuse_editions(self.file_set)
        self.canonical = protobuf_text.to_text(_with_custom_options(self.file_set))
        if descriptor is not None and self.canonical != text:
            raise InvalidSchema("The PROTOBUF schema is a descriptor that no text of a schema describes.")

    @cached_property
    def normalized(self) -> str:
        """The canonical text with imports, options, fields and constants sorted."""
        return protobuf_text.to_text(_with_custom_options(self.file_set), normalize=True)

    @property
    def file(self) -> FileDescriptorProto:
        """The descriptor of the schema itself."""
        return self.file_set.file[-1]

    @cached_property
    def descriptor(self) -> FileDescriptor:
        """The schema with all names resolved, in a pool of its own: other versions have the same names."""
        return _pool(self.file_set).FindFileByName(ROOT)

    def formatted(self, format: str) -> str:
        """The descriptor in base64 for "serialized", and else the canonical text."""
        if format != "serialized":
            return self.canonical
        return base64.b64encode(self.file.SerializeToString(deterministic=True)).decode()

    def unreadable(self, writer: ParsedSchema) -> list[str]:
        """What of the writer's wire format this schema would not understand, or would lose."""
        if not isinstance(writer, ProtobufSchema):
            raise TypeError(f"a Protobuf schema is compared with Protobuf schemas, and not with {writer.type}")
        return protobuf_compatibility.unreadable(self.descriptor, writer.descriptor)


def _imports(references: Sequence[NamedSchema]) -> tuple[tuple[str, str], ...]:
    """The texts of what is imported, by path; a descriptor among them becomes text, too."""
    known: list[tuple[str, str]] = []
    for reference in references:
        check_path(reference.name)
        descriptor = _descriptor(reference.text)
        text = reference.text if descriptor is None else _checked_text(descriptor, tuple(known))
        known.append((reference.name, text))
    return tuple(dict(known).items())


def _descriptor(text: str) -> FileDescriptorProto | None:
    """The descriptor that a text is the base64 of, as Python's serializer sends it; None if it is no base64."""
    packed = "".join(text.split())
    if not _BASE64.fullmatch(packed):
        return None
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(packed, validate=True))
    except (binascii.Error, DecodeError):
        return None
    file.ClearField("source_code_info")
    file.name = ROOT
    return file


def _checked_text(file: FileDescriptorProto, imports: tuple[tuple[str, str], ...]) -> str:
    """The text of a descriptor that somebody sent. Compiling that is what checks all names in it."""
    try:
        if not file.dependency:
            return protobuf_text.to_text(_with_custom_options(FileDescriptorSet(file=[file])))
        # Compiled are the imports alone, so that custom options, which they define, can be written.
        importing = "".join(f"import {protobuf_text.quoted(path)};\n" for path in file.dependency)
        files = FileDescriptorSet.FromString(_compiled(f'syntax = "proto3";\n{importing}', imports))
        files.file[-1].CopyFrom(file)
        return protobuf_text.to_text(_with_custom_options(files))
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise InvalidSchema(f"The PROTOBUF schema is no valid descriptor: {error}.") from None


@lru_cache(maxsize=CACHED)
def _compiled(text: str, imports: tuple[tuple[str, str], ...]) -> bytes:
    return bytes(compile_text(text, dict(imports)).SerializeToString())


def _pool(files: FileDescriptorSet) -> DescriptorPool:
    pool = DescriptorPool()
    try:
        for file in files.file:
            pool.AddSerializedFile(file.SerializeToString())
    except TypeError as error:
        raise InvalidSchema(f"The PROTOBUF schema is no valid descriptor: {error}.") from None
    return pool


def _with_custom_options(files: FileDescriptorSet) -> Any:
    """The last descriptor, of a class that knows the options that its imports define."""
    file = files.file[-1]
    if all(imported.name != _DESCRIPTORS for imported in files.file):
        return file
    kind = _pool(files).FindMessageTypeByName("google.protobuf.FileDescriptorProto")
    return message_factory.GetMessageClass(kind).FromString(file.SerializeToString())


def _refuse_editions(files: FileDescriptorSet) -> None:
    for file in files.file:
        if file.syntax == "editions" and file.edition not in _EDITIONS:
            raise InvalidSchema(
                'The PROTOBUF schema is of an edition that is unknown here. Write syntax = "proto3" or edition "2023".'
            )
