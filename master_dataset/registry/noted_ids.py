"""The schema ids that sources of this home have noted, which the registry must not give to other schemas.

What a source noted of an id is what all layers read its records by, for ever (`writer_schemas/noted.py`). A registry
that begins again, because Kafka was lost, would count from 1 and give these ids once more: records would then be read
with the wrong schema, and silently.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from infra.settings import Settings
from views.formats.writer_schemas import WriterSchema

FOLDERS = ("schemas", "later_schemas")
UNREADABLE = WriterSchema("", "")
"""Stands for a note that is damaged: no schema is this one, so its id is given to none."""

NotedSchemasById = Mapping[int, frozenset[WriterSchema]]
"""What sources noted of each id; several where they asked different registries."""


@dataclass(frozen=True)
class Taken:
    """What one registration has to know of the notes."""

    highest: int = 0
    """New ids are above this one."""
    others: frozenset[int] = field(default_factory=frozenset)
    """The ids that are noted for another schema than the one to register."""


NOTHING_TAKEN = Taken()


class NotedIds:
    """The notes of all sources of a home, declared or not any more, or of one. What was read is not read again."""

    def __init__(self, master: Path, source: str = "*") -> None:
        self._master, self._source = master, source
        self._read: dict[Path, WriterSchema | None] = {}

    @classmethod
    def of(cls, settings: Settings, source: str = "*") -> NotedIds:
        """Those of the home of these settings."""
        return cls(settings.master_dir or settings.home / "master", source)

    def read(self) -> NotedSchemasById:
        """What is noted now. Ids that were noted as unknown are left out: they stand for no schema."""
        found: dict[int, set[WriterSchema]] = {}
        for path in self._notes():
            if (noted := self._schema(path)) is not None:
                found.setdefault(int(path.name), set()).add(noted)
        return {schema_id: frozenset(noted) for schema_id, noted in found.items()}

    def _notes(self) -> Iterator[Path]:
        """The notes of ids; those of GUIDs stand for their content anyway."""
        for folder in FOLDERS:
            for path in self._master.glob(f"{self._source}.proofs/{folder}/*"):
                if path.name.isascii() and path.name.isdecimal():
                    yield path

    def _schema(self, path: Path) -> WriterSchema | None:
        if path not in self._read:
            try:
                noted = _from_bytes(path.read_bytes())
            except FileNotFoundError:
                return None
            if noted is None and path.parent.name != FOLDERS[0]:
                return None  # a schema may still be noted here
            self._read[path] = noted
        return self._read[path]


def _from_bytes(data: bytes) -> WriterSchema | None:
    """A note; None for one without a schema."""
    try:
        noted = json.loads(data.split(b"\n")[0])
        if "schema" not in noted:
            return None
        references = tuple((str(each["name"]), str(each["schema"])) for each in noted["references"])
        return WriterSchema(str(noted["schemaType"]), str(noted["schema"]), references)
    except (ValueError, TypeError, KeyError):
        return UNREADABLE
