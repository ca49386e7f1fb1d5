"""The writer schemas noted beside a master table: what the registry answered first is what every layer goes by.

    schemas/7                    {"schemaType":"AVRO","schema":"...","references":[{"name":"...","schema":"..."}]}
    schemas/8                    {"unknown_at":"2026-11-18T20:08:00+00:00"}
    schemas/89791762-2336-...    of a GUID

Whoever meets a schema first, the archiver or the speed layer, asks the registry and creates the object; of two at the
same moment one wins, and both read what it wrote. An object is never changed, so both layers read a record alike at any
time, also when the registry is gone, or gives another answer later.

A schema that was noted as unknown may get a second note, which counts from a cut on (`later_notes.py`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from infra.settings import Settings
from infra.store import ObjectMissing, PosixStore
from master_dataset.cut import cut_to_json
from master_dataset.errors import MasterDatasetError
from master_dataset.table.paths import own_folder, table_path
from master_dataset.writer_schemas import later_notes
from master_dataset.writer_schemas.registry import RegistryAway, SchemaRegistry
from views.formats.framing import described, frame_named, name_of
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


class SchemaNotes:
    """What is noted of the writer schemas of one source, for whoever reads records that are archived.

    A schema is noted before a record of it is: what nobody noted is unknown to whoever reads the table.
    """

    def __init__(self, table: Path, source: Source) -> None:
        self.source = source
        self._store = PosixStore(own_folder(table))
        self._unknown: set[bytes] = set()
        self._known: dict[bytes, WriterSchema] = {}
        self._waiting: set[bytes] = set()
        """Those whose second note is being written: their records wait."""
        self._later: set[bytes] = set()
        """Those whose second note was read."""

    def known(self) -> WriterSchemas:
        """The schemas that were found so far. Those that others wrote since are among them."""
        if self.source.needs_writer_schemas:
            for frame in self._frames():
                self._learn(frame)
            self._read_later()
        return dict(self._known)

    def summary(self, maximum: int) -> list[dict[str, Any]]:
        """The newest of the schemas as JSON has them: GUIDs first, then the highest ids."""
        if not self.source.needs_writer_schemas:
            return []
        self.known()
        newest = sorted(self._frames(), reverse=True)[:maximum]
        return [_summary(frame, self._known.get(frame)) for frame in newest]

    def _frames(self) -> list[bytes]:
        names = (name.removeprefix(PREFIX) for name in self._store.list(PREFIX))
        return [frame for frame in map(frame_named, names) if frame is not None]

    def _read_later(self) -> None:
        """Read the second notes that were written since. Most sources have none."""
        self._waiting = set()
        for frame, note in later_notes.read_notes(self._store, self.source.name, self._later):
            if note is None:
                self._waiting.add(frame)
            else:
                self._known[frame] = note
                self._unknown.discard(frame)
                self._later.add(frame)

    def _learn(self, frame: bytes) -> bool:
        """Read what is noted of a schema; whether anything is."""
        if frame in self._known or frame in self._unknown:
            return True
        name = f"{PREFIX}{name_of(frame)}"
        try:
            writer = from_bytes(self._store.get(name))
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


class NotedSchemas(SchemaNotes):
    """The same for whoever reads new records: the registry is asked for what nobody has met yet."""

    def __init__(self, settings: Settings, source: Source, table: Path | None = None) -> None:
        super().__init__(table or table_path(settings, source.name), source)
        self._settings = settings

    def without_answer(self, frames: Collection[bytes], asked: Collection[bytes] = ()) -> set[bytes]:
        """Those that are not noted as unknown: nobody has met them, or somebody found them since.

        `asked`: those that the registry was asked for already; they are left out where nothing is noted of them.
        Call it after the records were read: what is noted by then holds for them.
        """
        self._read_later()
        noted = {frame for frame in frames if self._learn(frame)}
        for_good = {frame for frame in noted if frame in self._unknown and frame not in self._waiting}
        return {*frames} - for_good - ({*asked} - noted)

    def resolve(self, frames: Iterable[bytes]) -> bool:
        """Look up schemas that are not known; whether any was found. RegistryAway where that cannot be said now."""
        self._read_later()
        found, registry = False, registry_of(self._settings)
        for frame in sorted(frames):
            if frame in self._waiting:
                raise RegistryAway(later_notes.unfinished(self.source.name, frame))
            if not self._learn(frame):
                self._ask(registry, frame)
            found = found or frame in self._known
        return found

    def why_settled(self, frame: bytes) -> str | None:
        """Why there is nothing to ask again: what is known of a schema; None where it is noted as unknown."""
        self._read_later()
        if frame in self._waiting:
            return None
        if not self._learn(frame):
            return "not noted as unknown; the registry is asked when a record names it"
        return "known already" if frame in self._known else None

    def _ask(self, registry: SchemaRegistry | OwnRegistry, frame: bytes) -> None:
        answer = registry.schema_of(frame)
        if answer is None and len(self._unknown) >= MAX_UNKNOWN:
            log.warning("schema_unknown", source=self.source.name, schema=described(frame), noted=False)
            return
        if self._store.put_if_absent(f"{PREFIX}{name_of(frame)}", to_bytes(answer)):
            event = "schema_unknown" if answer is None else "schema_found"
            log.info(event, source=self.source.name, schema=described(frame))
        self._learn(frame)


def registry_of(settings: Settings) -> SchemaRegistry | OwnRegistry:
    """The registry to ask now: the one of schema_registry_url, else our own if it is on."""
    if settings.registry_enabled and not settings.schema_registry_url:
        from master_dataset.writer_schemas.own_registry import OwnRegistry

        return OwnRegistry(settings)
    return SchemaRegistry(settings)


def _summary(frame: bytes, writer: WriterSchema | None) -> dict[str, Any]:
    since = cut_to_json(dict(writer.since)) if writer and writer.since else None
    return {"schema": name_of(frame), "type": writer and writer.type, "known": writer is not None, "since": since}


def to_bytes(writer: WriterSchema | None) -> bytes:
    """A first note."""
    if writer is None:
        return json.dumps({"unknown_at": datetime.now(UTC).isoformat(timespec="seconds")}).encode()
    return json.dumps(later_notes.content(writer)).encode()


def from_bytes(data: bytes) -> WriterSchema | None:
    """What a first note says; None: the schema is unknown."""
    noted = json.loads(data)
    return None if "unknown_at" in noted else later_notes.writer_in(noted)
