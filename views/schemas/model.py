"""What all kinds of schemas have in common: their types, their errors, their references, and the parsed schema."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from views.errors import DeclarationError

AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
TYPES = (AVRO, JSON, PROTOBUF)

MAX_TEXT_BYTES = 1_000_000
"""How long a schema may be, together with all that it refers to."""

MAX_REFERENCES = 200
"""How many others a schema may refer to, directly or not."""


class InvalidSchema(DeclarationError):
    """A text is not a schema of its type; the message says where, and what is wrong."""


@dataclass(frozen=True)
class NamedSchema:
    """A schema that another one refers to, by the name that it has there."""

    name: str
    text: str


class ParsedSchema(ABC):
    """A schema that was understood.

    `canonical` is the text that a registry stores: two texts that differ in layout only have the same one.
    `normalized` is equal for schemas that differ in the order of what has no order, too.
    """

    type: str
    canonical: str

    @property
    @abstractmethod
    def normalized(self) -> str:
        """The canonical text of the schema with everything sorted whose order means nothing."""

    def formatted(self, format: str) -> str:
        """The text in a format that a client asks for; the canonical text for a format that the type does not have."""
        return self.canonical

    @abstractmethod
    def unreadable(self, writer: ParsedSchema) -> list[str]:
        """Why this schema cannot read what `writer`, a schema of the same type, wrote; empty if it can."""


def check_sizes(type: str, text: str, references: Sequence[NamedSchema]) -> None:
    """Refuse what is too long to be looked at, and what is not Unicode."""
    if len(references) > MAX_REFERENCES:
        raise InvalidSchema(
            f"The {type} schema has {len(references)} references, and {MAX_REFERENCES} is the most. Put definitions "
            "that belong together into one schema."
        )
    try:
        size = sum(len(part.encode()) for part in (text, *(reference.text for reference in references)))
    except UnicodeEncodeError:
        raise InvalidSchema(f"The {type} schema holds half a surrogate pair, which is no character.") from None
    if size > MAX_TEXT_BYTES:
        raise InvalidSchema(
            f"The {type} schema and its references have {size} bytes, and {MAX_TEXT_BYTES} is the most. Split it, or "
            "leave out documentation."
        )
