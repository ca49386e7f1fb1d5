"""The writer schemas noted beside a master table: what the registry answered first is what every layer goes by.

    schemas/7                    {"schemaType":"AVRO","schema":"...","references":[{"name":"...","schema":"..."}]}
    schemas/8                    {"unknown_at":"2026-11-18T20:08:00+00:00"}
    schemas/89791762-2336-...    of a GUID

Whoever meets a schema first, the archiver or the speed layer, asks the registry and creates the object; of two at the
same moment one wins, and both read what it wrote. An object is never changed, so both layers read a record alike at any
time, also when the registry is gone, or gives another answer later.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from infra.settings import Settings
from infra.store import ObjectMissing, PosixStore
from master_dataset.errors import MasterDatasetError
from master_dataset.table.paths import own_folder, table_path
from master_dataset.writer_schemas.registry import SchemaRegistry
from views.formats.framing import GUID_BYTE, described, frame_of_id, name_of
from views.formats.writer_schemas import WriterSchema, WriterSchemas
from views.source import Source

if TYPE_CHECKING:
    from master_dataset.writer_schemas.own_registry import OwnRegistry

PREFIX = "schemas/"
MAX_UNKNOWN = 10_000
"""How many unknown schemas are noted: a producer that sends random ids must not fill the disk. Beyond it the registry
is asked each time."""

log = structlog.get_logger()


class NewSchemas(Exception):
    """Records name schemas that nobody has looked up yet."""

    def __init__(self, frames: set[bytes]) -> None:
        super().__init__(", ".join(described(frame) for frame in sorted(frames)[:10]))
        self.frames = frames


class NotedSchemas:
    """The writer schemas of one source."""

    def __init__(self, settings: Settings, source: Source, table: Path | None = None) -> None:
        self.source = source
        self._store = PosixStore(own_folder(table or table_path(settings, source.name)))
        self._settings = settings
        self._unknown: set[bytes] = set()
        self._known: dict[bytes, WriterSchema] = {}

    def known(self) -> WriterSchemas:
        """The schemas that were found so far. Those that others wrote since are among them."""
        if self.source.needs_writer_schemas:
            for name in self._store.list(PREFIX):
                frame = _frame(name.removeprefix(PREFIX))
                if frame is not None and frame not in self._known and frame not in self._unknown:
                    self._learn(frame)
        return dict(self._known)

    def without_answer(self, frames: Iterable[bytes]) -> set[bytes]:
        """Those that are not noted as unknown: nobody has met them, or somebody found them since."""
        return {frame for frame in frames if frame not in self._unknown and not self._is_noted_unknown(frame)}

    def resolve(self, frames: Iterable[bytes]) -> bool:
        """Look up schemas that are not known; whether any was found. RegistryAway where that cannot be said now."""
        found, registry = False, _registry(self._settings)
        for frame in sorted(frames):
            if frame not in self._known and frame not in self._unknown and not self._learn(frame):
                self._ask(registry, frame)
            found = found or frame in self._known
        return found

    def _is_noted_unknown(self, frame: bytes) -> bool:
        return self._learn(frame) and frame in self._unknown

    def _ask(self, registry: SchemaRegistry | OwnRegistry, frame: bytes) -> None:
        answer = registry.schema_of(frame)
        if answer is None and len(self._unknown) >= MAX_UNKNOWN:
            log.warning("schema_unknown", source=self.source.name, schema=described(frame), noted=False)
            return
        if self._store.put_if_absent(f"{PREFIX}{name_of(frame)}", _to_bytes(answer)):
            event = "schema_unknown" if answer is None else "schema_found"
            log.info(event, source=self.source.name, schema=described(frame))
        self._learn(frame)

    def _learn(self, frame: bytes) -> bool:
        """Read what is noted of a schema; whether anything is."""
        name = f"{PREFIX}{name_of(frame)}"
        try:
            writer = _from_bytes(self._store.get(name))
        except ObjectMissing:
            return False
        except (ValueError, TypeError, KeyError, AttributeError):
            raise MasterDatasetError(
                f"Source {self.source.name!r}: {name!r} in {self._store!r} is damaged. Remove it: the schema "
                "registry is asked again."
            ) from None
        if writer is None:
            self._unknown.add(frame)
        else:
            self._known[frame] = writer
        return True


def _registry(settings: Settings) -> SchemaRegistry | OwnRegistry:
    """The registry to ask now: the one of schema_registry_url, else our own if it is on."""
    if settings.registry_enabled and not settings.schema_registry_url:
        from master_dataset.writer_schemas.own_registry import OwnRegistry

        return OwnRegistry(settings)
    return SchemaRegistry(settings)


def _frame(name: str) -> bytes | None:
    """`7` -> its frame; None for a name that is not ours."""
    if name.isascii() and name.isdecimal() and int(name) < 2**32:
        return frame_of_id(int(name))
    try:
        return GUID_BYTE + uuid.UUID(name).bytes
    except ValueError:
        return None


def _to_bytes(writer: WriterSchema | None) -> bytes:
    if writer is None:
        return json.dumps({"unknown_at": datetime.now(UTC).isoformat(timespec="seconds")}).encode()
    references = [{"name": name, "schema": text} for name, text in writer.references]
    noted: dict[str, Any] = {"schemaType": writer.type, "schema": writer.text, "references": references}
    return json.dumps(noted).encode()


def _from_bytes(data: bytes) -> WriterSchema | None:
    noted = json.loads(data)
    if "unknown_at" in noted:
        return None
    references = tuple((str(each["name"]), str(each["schema"])) for each in noted["references"])
    return WriterSchema(str(noted["schemaType"]), str(noted["schema"]), references)
