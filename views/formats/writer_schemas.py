"""The schemas that records were written with, as the layers know them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class WriterSchema:
    """A schema as the registry has it. `references` are names and texts of those it refers to, dependencies first."""

    type: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    since: tuple[tuple[int, int], ...] = ()
    """The cut from which on records are of this schema, by partition. Below it, it was unknown, and stays so."""


WriterSchemas = Mapping[bytes, WriterSchema | None]
"""By frame (`framing.py`). None: the registry does not know the schema."""

NO_WRITER_SCHEMAS: WriterSchemas = MappingProxyType({})
