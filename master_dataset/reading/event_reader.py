"""Read the events of records as they come, with the schemas that are noted: for processes without a JVM."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from master_dataset.events.raw_records import RawRecord, RecordReader
from master_dataset.writer_schemas.noted import NotedSchemas
from views.formats.framing import split
from views.formats.writer_schemas import NO_WRITER_SCHEMAS
from views.source import Source
from views.types import EPOCH


class ReadEvent(NamedTuple):
    """A valid event: as JSON shows it, and the typed fields that expressions see, with its id and time."""

    shown: dict[str, Any]
    fields: dict[str, Any]


class EventReader:
    """Reads the records of one source. `learn` comes before `read`, for all records that are to be read."""

    def __init__(self, source: Source, noted: NotedSchemas) -> None:
        self.source = source
        self._noted, self._writers = noted, NO_WRITER_SCHEMAS
        self._reader = RecordReader(source)

    def learn(self, records: Iterable[RawRecord]) -> None:
        """Look up the writer schemas of records, as the layers do: RegistryAway where they have to wait."""
        if not self.source.needs_writer_schemas:
            return
        framed = (split(each.value, each.headers) for each in records if each.value is not None)
        unknown = {each.frame for each in framed if each is not None} - self._writers.keys()
        if not unknown:
            return
        if new := self._noted.without_answer(unknown):
            self._noted.resolve(new)
        writers = self._noted.known()
        if writers != self._writers:
            self._writers, self._reader = writers, RecordReader(self.source, writers)

    def read(self, record: RawRecord) -> ReadEvent:
        """The event of a record; InvalidEvent where it is none."""
        fields, sent = self._reader.decode(record)
        shown = _shown(fields) if sent is None else sent
        id_field, time_field = self.source.id_field, self.source.time_field
        if not fields[id_field]:
            fields[id_field] = f"{self.source.topic}/{record.partition}/{record.offset}"
        if fields[time_field] is None:
            fields[time_field] = EPOCH + timedelta(milliseconds=record.timestamp_ms)
        return ReadEvent(shown, fields)


def _shown(value: Any) -> Any:
    """Decoded values as JSON has them; decimals as text, as answers give them."""
    match value:
        case dict():
            return {name: _shown(each) for name, each in value.items()}
        case list():
            return [_shown(each) for each in value]
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
    return value
