"""Schemas that were noted as unknown and found later: a second note, which counts from a cut on.

    later_schemas/8    {"asked_again_at":"2026-11-19T08:00:00+00:00"}      records of the schema wait
    later_schemas/8    {"from":{"0":120,"1":95},"schemaType":"AVRO","schema":"...","references":[]}

A record below the cut is invalid for good, as it was judged when it came; sent again, it is a new record above it. So
every layer judges a record alike, whenever it reads it, and a recompute gives what was answered.

The cut has to be above every record that a layer judged by the first note alone. A layer looks for the second note
after it has read records, and before it counts or stores them. So what it judged without that note was in Kafka before
the note was there, and the end of the topic, read after that, is above it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import Any

from infra.store import ObjectMissing, PosixStore
from master_dataset.cut import Cut, cut_from_json, cut_to_json
from master_dataset.errors import MasterDatasetError
from views.formats.framing import described, frame_named, name_of
from views.formats.writer_schemas import WriterSchema

PREFIX = "later_schemas/"


def read_notes(store: PosixStore, source: str, known: Collection[bytes]) -> Iterator[tuple[bytes, WriterSchema | None]]:
    """The second notes of a source, without those that are known; None: it is being written, and records wait."""
    for name in store.list(PREFIX):
        frame = frame_named(name.removeprefix(PREFIX))
        if frame is not None and frame not in known:
            try:
                yield frame, from_bytes(store.read(name).data)
            except ObjectMissing:
                continue
            except (ValueError, TypeError, KeyError, AttributeError):
                raise MasterDatasetError(
                    f"Source {source!r}: {name!r} in {store!r} is damaged. Restore it from a backup."
                ) from None


def unfinished(source: str, frame: bytes) -> str:
    """Why records of a schema wait."""
    return (
        f"Records that name {described(frame)} wait: somebody began to ask for it again, and did not end. "
        f"`tidemark registry ask-again {source} {name_of(frame)}` does."
    )


def content(writer: WriterSchema) -> dict[str, Any]:
    """A schema as notes have it."""
    references = [{"name": name, "schema": text} for name, text in writer.references]
    return {"schemaType": writer.type, "schema": writer.text, "references": references}


def writer_in(noted: dict[str, Any]) -> WriterSchema:
    """The schema of a note."""
    references = tuple((str(each["name"]), str(each["schema"])) for each in noted["references"])
    since = tuple(sorted(cut_from_json(noted.get("from", {})).items()))
    return WriterSchema(str(noted["schemaType"]), str(noted["schema"]), references, since)


def begun() -> bytes:
    """A note that makes records wait."""
    return json.dumps({"asked_again_at": datetime.now(UTC).isoformat(timespec="seconds")}).encode()


def to_bytes(writer: WriterSchema, since: Cut) -> bytes:
    """A note of a schema that is known from a cut on."""
    return json.dumps({"from": cut_to_json(since), **content(writer)}).encode()


def from_bytes(data: bytes) -> WriterSchema | None:
    """What a note says; None: records wait."""
    noted = json.loads(data)
    return None if "asked_again_at" in noted else writer_in(noted)
