"""Ask the registry again for a schema that it did not know, and note what it says from now on: `later_notes.py`."""

from __future__ import annotations

from typing import NamedTuple

import structlog

from infra.failpoints import reach
from infra.settings import Settings
from infra.stack.addresses import addresses
from infra.store import PosixStore
from master_dataset.cut import Cut, cut_to_json
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.positions import check_topic_id, logical_positions, read_positions
from master_dataset.table import coverage
from master_dataset.table.paths import own_folder, table_path
from master_dataset.writer_schemas import later_notes
from master_dataset.writer_schemas.noted import NotedSchemas, registry_of
from views.formats.framing import described, frame_named, name_of
from views.formats.writer_schemas import WriterSchema
from views.source import Source

log = structlog.get_logger()


class NothingToCorrect(MasterDatasetError):
    """A schema that was never noted as unknown, or that the registry still does not know."""


class Correction(NamedTuple):
    """What is known of a schema by now."""

    type: str
    since: Cut


def ask_again(settings: Settings, source: Source, schema: str) -> Correction:
    """Ask the registry for a schema, an id or a GUID, that is noted as unknown, and note the answer.

    NothingToCorrect where it is not, or where there is still no answer: nothing is changed then. RegistryAway where the
    registry does not answer.
    """
    frame = frame_named(schema)
    if frame is None:
        raise NothingToCorrect(f"{schema[:100]!r} names no schema: it should be an id, such as 7, or a GUID.")
    if not source.needs_writer_schemas:
        raise NothingToCorrect(
            f"Source {source.name!r} reads {source.format!r} without asking for the schemas of its records."
        )
    known = NotedSchemas(settings, source).why_settled(frame)
    if known is not None:
        raise NothingToCorrect(
            f"Source {source.name!r}: {described(frame)} is {known}. `GET /sources/{source.name}` lists its schemas."
        )
    writer = registry_of(settings).schema_of(frame)
    if writer is None:
        raise NothingToCorrect(
            f"The schema registry still does not know {described(frame)}. Nothing was changed. Register it, or set "
            "schema_registry_url to the registry that has it; then ask again."
        )
    return Correction(writer.type, _note(settings, source, frame, writer))


def _note(settings: Settings, source: Source, frame: bytes, writer: WriterSchema) -> Cut:
    """Note that a schema is known from the end of the topic on. Returns that cut. Done again, it goes on."""
    store, name = PosixStore(own_folder(table_path(settings, source.name))), f"{later_notes.PREFIX}{name_of(frame)}"
    # Step 1. From here on records of this schema wait. A crash after it leaves them waiting, and both layers say so.
    store.replace_if(name, None, later_notes.begun())
    reach("writer_schemas.after_begin")
    stored = store.read(name)
    if (known := later_notes.from_bytes(stored.data)) is not None:
        return dict(known.since)
    # Step 2. The cut: whatever was judged without step 1 was in the topic before it.
    cut = _end_of(settings, source)
    # Step 3. The schema. Of two who do this, one wins; the cut of either is right.
    if store.replace_if(name, stored.version, later_notes.to_bytes(writer, cut)) is not None:
        log.info("schema_found_later", source=source.name, schema=described(frame), since=cut_to_json(cut))
        return cut
    return _note(settings, source, frame, writer)


def _end_of(settings: Settings, source: Source) -> Cut:
    """The end of the topic in logical offsets."""
    held = coverage.of(table_path(settings, source.name))
    found = read_positions(settings, addresses(settings).kafka, source)
    check_topic_id(source, found.topic_id, held.topic_id)
    return logical_positions(found, held.offset_base).latest
