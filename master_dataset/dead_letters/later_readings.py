"""Dead letters whose records count by now: invalid when they were archived, valid by a later version of their source.

A later version reads all records again from the bytes that were sent. Such a letter need not be sent again; if its
event has no id, it must not, because the second record would be another event.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from master_dataset.cut import Cut
from master_dataset.dead_letters.letters import NOT_OURS, DeadLetter, whole
from master_dataset.errors import InvalidEvent, MasterDatasetError
from master_dataset.events.raw_records import RawRecord, RecordReader
from master_dataset.table.coverage import of as coverage_of
from master_dataset.table.readings import later_readings
from master_dataset.writer_schemas.noted import SchemaNotes
from views.source import Source


class AlreadyCounts(MasterDatasetError):
    """A dead letter that would count a second time if it were sent again."""


class LaterReadings:
    """The versions of a source after its first, as far as they judge dead letters. Made for one page of letters.

    JSON is judged by the collector's checks. They are stricter than Spark's, so nothing is said of a few records that
    count.
    """

    def __init__(self, table: Path, source: Source) -> None:
        try:
            readings = later_readings(table, source)
            self._removed: Cut = coverage_of(table).removed.cut if readings else {}
            writers = SchemaNotes(table, source).known() if readings else {}
        except (OSError, ValueError) as error:
            raise MasterDatasetError(
                f"Source {source.name!r}: the versions of its master table could not be read ({error}). "
                f"`tidemark master fsck {source.name}` says what is wrong with it."
            ) from None
        self._readings = [RecordReader(each, writers) for each in reversed(readings)]

    def counts_since(self, letter: DeadLetter) -> int | None:
        """The version since which its record counts; None where it does not, or that is not known."""
        record, since = self._record(letter), None
        if record is None:
            return None
        for reader in self._readings:  # the one in force first
            try:
                reader.read(record)
            except InvalidEvent:
                break
            since = reader.source.version
        return since

    def described(self, letter: DeadLetter) -> dict[str, Any]:
        """The letter as JSON, with `counts_since_version` where its record counts by now."""
        since = self.counts_since(letter)
        return whole(letter) if since is None else {**whole(letter), "counts_since_version": since}

    def check_replay(self, letters: Iterable[DeadLetter]) -> None:
        """AlreadyCounts if one of the letters counts, and would count again: its event has no id to know it by."""
        for letter in letters:
            since = self.counts_since(letter)
            if since is not None and not self._has_id(letter):
                raise AlreadyCounts(
                    f"Dead letter {letter.number} counts since version {since} of its source, and its event has no id: "
                    f"sent again, it would count twice. Nothing was sent. Leave it out."
                )

    def _record(self, letter: DeadLetter) -> RawRecord | None:
        """Its record, if that can count: None where it is not ours, not whole, or its record was removed."""
        if letter.version == NOT_OURS or letter.left_out_bytes is not None:
            return None
        if letter.offset < self._removed.get(letter.partition, 0):
            return None
        return RawRecord(letter.partition, letter.offset, letter.timestamp_ms, letter.value, letter.headers)

    def _has_id(self, letter: DeadLetter) -> bool:
        record, in_force = self._record(letter), self._readings[0]
        return record is not None and bool(in_force.read(record)[in_force.source.id_field])
