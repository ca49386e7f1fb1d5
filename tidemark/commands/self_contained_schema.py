"""A schema with everything that it refers to, as one text: what a source can read by.

Avro is resolved by the registry. Of Protobuf, files become one with the package of the first; of JSON Schema, what is
referred to becomes definitions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urldefrag, urljoin

import typer

References = Sequence[tuple[str, str]]
"""Names and texts, dependencies first."""
GOOGLE = "google/protobuf/"


def self_contained(type: str, text: str, references: References) -> str:
    """The text of a schema that refers to no other. BadParameter where it cannot be written as one."""
    if not references or type == "AVRO":
        return text
    return _one_file(text, references) if type == "PROTOBUF" else _one_document(text, references)


# ---- Protobuf ----------------------------------------------------------------


def _one_file(text: str, references: References) -> str:
    from google.protobuf import descriptor_pb2

    from views.formats.protobuf_schema import ProtobufError, compiled
    from views.schemas.protobuf_text import to_text

    try:
        files = [each for each in compiled(text, tuple(references)).file if not each.name.startswith(GOOGLE)]
    except ProtobufError as error:
        raise typer.BadParameter(str(error)) from None
    main = files[-1]
    merged = descriptor_pb2.FileDescriptorProto(name=main.name, package=main.package, syntax=main.syntax)
    renamed: dict[str, str] = {}
    for file in (main, *files[:-1]):  # an event is the first message of its file
        if (file.syntax or "proto2") != (main.syntax or "proto2"):
            raise typer.BadParameter(f"{file.name!r} has another syntax than the schema that refers to it.")
        for kind in ("message_type", "enum_type"):
            for each in getattr(file, kind):
                before, now = (".".join(["", *filter(None, [package, each.name])]) for package in _packages(file, main))
                if now in renamed.values():
                    raise typer.BadParameter(f"two of its files have a type {each.name!r}; one file cannot.")
                renamed[before] = now
                getattr(merged, kind).add().CopyFrom(each)
        merged.dependency.extend(
            name for name in file.dependency if name.startswith(GOOGLE) and name not in merged.dependency
        )
    for message in merged.message_type:
        _rename(message, renamed)
    return to_text(merged)


def _packages(file: Any, main: Any) -> tuple[str, str]:
    return file.package, main.package


def _rename(message: Any, renamed: Mapping[str, str]) -> None:
    for field in message.field:
        # A nested type, `.lines.Line.Kind`, goes where its outermost type does.
        for before, now in renamed.items():
            if field.type_name == before or field.type_name.startswith(f"{before}."):
                field.type_name = now + field.type_name.removeprefix(before)
                break
    for inner in message.nested_type:
        _rename(inner, renamed)


# ---- JSON Schema -------------------------------------------------------------


def _one_document(text: str, references: References) -> str:
    """`{"$ref": "item.json#/a"}` -> `{"$ref": "#/$defs/item.json/a"}`, with item.json below `$defs`."""
    schema = _parsed(text)
    others = {name: _parsed(other) for name, other in references}
    whole = _pointing(schema, _identity(schema), "", others)
    known = whole.setdefault("$defs", {})
    if twice := sorted(others.keys() & known.keys()):
        raise typer.BadParameter(f"its $defs has {twice[0]!r}, which is also the name of a schema that it refers to.")
    known |= {
        name: _pointing(other, _identity(other) or name, _pointer(name), others) for name, other in others.items()
    }
    return json.dumps(whole, indent=2, ensure_ascii=False)


def _parsed(text: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise typer.BadParameter("what it refers to, or it itself, is no JSON schema with members.")
    return found


def _identity(schema: Any) -> str:
    found = schema.get("$id", "")
    return found if isinstance(found, str) else ""


def _pointer(name: str) -> str:
    return "/$defs/" + name.replace("~", "~0").replace("/", "~1").replace("%", "%25")


def _pointing(schema: Any, base: str, place: str, others: Mapping[str, Any]) -> Any:
    """A schema with its references leading to where the schemas are in the whole. `place`: where this one is."""

    def pointing(value: Any) -> Any:
        if isinstance(value, list):
            return [pointing(each) for each in value]
        if not isinstance(value, dict):
            return value
        found = {name: pointing(each) for name, each in value.items()}
        if isinstance(reference := value.get("$ref"), str):
            found["$ref"] = pointer_to(reference)
        return found

    def pointer_to(reference: str) -> str:
        address, fragment = urldefrag(reference)
        whole = urljoin(base, address)
        if not address or whole == base:
            return f"#{place}{fragment}"
        name = next((each for each in (address, whole) if each in others), None)
        return reference if name is None else f"#{_pointer(name)}{fragment}"

    found: dict[str, Any] = pointing(schema)
    found.pop("$id", None)
    return found
