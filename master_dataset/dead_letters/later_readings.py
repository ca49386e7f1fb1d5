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
from master_dataset.events.field_checks import END_TIME_EXCLUSIVE, FIRST_TIME
from master_dataset.events.json_records import Read, compile_reader
from master_dataset.table.coverage import of as coverage_of
from master_dataset.table.readings import later_readings
from views.reading import picked
from views.source import Source


class AlreadyCounts(MasterDatasetError):
    """A dead letter that would count a second time if it were sent again."""


class LaterReadings:
    """The versions of a source after its first, as far as they judge dead letters. Made for one page of letters.

    Records are judged by the collector's checks. They are stricter than Spark's, so nothing is said of a few records
    that count; and they read JSON only, so nothing is said of other formats.
    """

    def __init__(self, table: Path, source: Source) -> None:
        try:
            readings = later_readings(table, source) if source.format == "json" else []
            self._removed: Cut = coverage_of(table).removed.cut if readings else {}
        except (OSError, ValueError) as error:
            raise MasterDatasetError(
                f"Source {source.name!r}: the versions of its master table could not be read ({error}). "
                f"`tidemark master fsck {source.name}` says what is wrong with it."
            ) from None
        self._readings = [(each, compile_reader(each)) for each in reversed(readings)]

    def counts_since(self, letter: DeadLetter) -> int | None:
        """The version since which its record counts; None where it does not, or that is not known."""
        since = None
        for reading, read in self._readings if self._can_count(letter) else ():  # the one in force first
            if not _is_valid(reading, _event(read, letter), letter.timestamp_ms):
                break
            since = reading.version
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

    def _can_count(self, letter: DeadLetter) -> bool:
        """Whether it is ours and whole, and its record was not removed."""
        if letter.version == NOT_OURS or letter.left_out_bytes is not None:
            return False
        return letter.offset >= self._removed.get(letter.partition, 0)

    def _has_id(self, letter: DeadLetter) -> bool:
        in_force, read = self._readings[0]
        return picked(in_force.schema, _event(read, letter) or {}).get(in_force.id_field) is not None


def _event(read: Read, letter: DeadLetter) -> dict[str, Any] | None:
    try:
        return read(letter.value, letter.headers)
    except InvalidEvent:
        return None


def _is_valid(reading: Source, event: dict[str, Any] | None, timestamp_ms: int) -> bool:
    if event is None:
        return False
    has_time = picked(reading.schema, event).get(reading.time_field) is not None
    return has_time or FIRST_TIME.timestamp() <= timestamp_ms / 1000 < END_TIME_EXCLUSIVE.timestamp()
