"""Avro schemas: what their texts say, as a registry stores and decoders read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from views.schemas import avro_compatibility
from views.schemas.avro_text import to_text
from views.schemas.avro_types import AvroParser
from views.schemas.model import AVRO, NamedSchema, ParsedSchema, check_sizes


class AvroSchema(ParsedSchema):
    """An Avro schema."""

    type = AVRO

    def __init__(self, text: str, references: Sequence[NamedSchema] = ()) -> None:
        check_sizes(AVRO, text, references)
        parser = AvroParser()
        for reference in references:
            parser.parse(reference.text, f"AVRO schema '{reference.name}'")
        self._known = tuple(parser.named)
        self.root = parser.parse(text, "AVRO schema")
        self.canonical = to_text(self.root, self._known)

    @cached_property
    def normalized(self) -> str:
        """The canonical text with properties and aliases sorted."""
        return to_text(self.root, self._known, normalize=True)

    @cached_property
    def resolved(self) -> str:
        """The text with the types of all references written out: it can be read without them."""
        return to_text(self.root)

    @cached_property
    def json(self) -> Any:
        """What decoders take: the resolved schema as a value."""
        return json.loads(self.resolved)

    def formatted(self, format: str) -> str:
        """The resolved text for "resolved", and else the canonical one."""
        return self.resolved if format == "resolved" else self.canonical

    def unreadable(self, writer: ParsedSchema) -> list[str]:
        """What Avro's schema resolution finds in the way."""
        if not isinstance(writer, AvroSchema):
            raise TypeError(f"an Avro schema is compared with Avro schemas, and not with {writer.type}")
        return avro_compatibility.unreadable(self.root, writer.root)
