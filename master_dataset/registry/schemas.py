"""A schema as the registry knows it: its text, its type, and the schemas that it refers to."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass

AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"


@dataclass(frozen=True)
class Reference:
    """A schema that another one uses: the name it has there, and the subject and version that it is."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True)
class Schema:
    """The content of a schema. Equal content has one id, in however many subjects it is registered.

    `metadata` and `rule_set` are JSON texts of Confluent's that are kept and not interpreted.
    """

    text: str
    type: str = AVRO
    references: tuple[Reference, ...] = ()
    metadata: str | None = None
    rule_set: str | None = None

    @property
    def md5(self) -> bytes | None:
        """Confluent's digest of the content; None with metadata or rules, whose part in it is not known here."""
        if self.metadata is not None or self.rule_set is not None:
            return None
        digest = hashlib.md5(self.text.encode(), usedforsecurity=False)
        for reference in self.references:
            digest.update(reference.name.encode() + reference.subject.encode())
            digest.update(reference.version.to_bytes(4, "big", signed=True))
        return digest.digest()


def guid(md5: bytes) -> str:
    """The globally unique id of a schema: the digest of its content as a UUID."""
    return str(uuid.UUID(bytes=md5))
