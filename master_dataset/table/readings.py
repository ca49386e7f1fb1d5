"""The readings of a source that its master table has had: numbered objects beside the table, each written once.

readings/00000001    how records were judged and read when the table was created: its parsed columns are those
readings/00000002    how they are since; the last one is in force

A table without any has only ever had one, which its columns say. The parsed columns
stay those of the first reading, as far as it has them. Whoever wants the fields of a later one reads them again from
the bytes that were sent (master_dataset/reading/read_spark.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import structlog

from infra.failpoints import reach
from infra.settings import Settings
from infra.store import PosixStore
from master_dataset.errors import MasterDatasetError
from master_dataset.table.fields import SourceChanged, check_fields, columns_of
from master_dataset.table.paths import own_folder, table_path
from views.errors import DeclarationError
from views.evolution import evolution
from views.source import Source

FOLDER = "readings"
DIGITS = 8

log = structlog.get_logger()


class ReadingDamaged(MasterDatasetError):
    """A reading that was written can no longer be read."""


def first_reading(table: Path, source: Source) -> Source:
    """The source with the reading that the parsed columns of its table are of."""
    names = _names(table)
    if names:
        return _read(table, source, names[0])
    if source.version == 1 or columns_of(table) is None:
        return source
    try:
        check_fields(table, source)
    except SourceChanged:  # the table is older than readings
        return _of_columns(table, source)
    return source  # it was created with this version, and nothing came after that


def reading_in_force(table: Path, source: Source) -> Source:
    """The source with the newest reading that was adopted, or that of the columns where none ever was."""
    names = _names(table)
    return _read(table, source, names[-1]) if names else first_reading(table, source)


def later_readings(table: Path, source: Source) -> list[Source]:
    """The source with each reading that was adopted after the first; the last one is in force."""
    return [_read(table, source, name) for name in _names(table)[1:]]


def is_of_first_reading(table: Path, source: Source) -> bool:
    """Whether the parsed columns of a table are what this source would read."""
    names = _names(table)
    return (int(names[0]) if names else first_reading(table, source).version) == source.version


def check_reading(table: Path, source: Source) -> list[str]:
    """What a declaration changes that may follow what the table has; SourceChanged where it may not.

    Empty: nothing, or there is no table yet.
    """
    names = _names(table)
    if not names:
        return _check_against_columns(table, source)
    newest = _read(table, source, names[-1])
    if source.version == newest.version:
        if source.reading != newest.reading and source.meaning != newest.meaning:
            raise _changed(newest, source)
        return []
    return _check_next(newest, source, [_read(table, source, name) for name in names[:-1]])


def adopt(table: Path, source: Source) -> Source:
    """Let the declared reading of a source be in force from now on, if it may. Returns the source with the one that is.

    Done again, it changes nothing. SourceChanged where the declaration may not follow what the table has.
    """
    changes = check_reading(table, source)
    if columns_of(table) is None:
        return source
    store = _store(table)
    if not _names(table):  # Step 1. What the parsed columns are. A crash after it records what was true before.
        base = _of_columns(table, source) if changes else source
        store.put_if_absent(_name(base.version), json.dumps(base.reading).encode())
    if changes:
        reach("readings.before_adopt")
        # Step 2. The new reading. Of two that are adopted at the same time, one wins.
        if store.put_if_absent(_name(source.version), json.dumps(source.reading).encode()):
            log.info("reading_adopted", source=source.name, version=source.version, changes=changes)
        reach("readings.after_adopt")
        check_reading(table, source)
    return source


def changed_sources(settings: Settings, sources: Iterable[Source]) -> dict[str, str]:
    """The sources whose declarations may not follow what their tables have, each with the reason and what to do."""
    found = {}
    for source in sources:
        try:
            check_reading(table_path(settings, source.name), source)
        except SourceChanged as error:
            found[source.name] = str(error)
    return found


def pending_changes(settings: Settings, source: Source) -> list[str]:
    """What will change when the declaration is adopted, by the next batch run or start of the archiver."""
    try:
        return check_reading(table_path(settings, source.name), source)
    except SourceChanged:
        return []


def _check_against_columns(table: Path, source: Source) -> list[str]:
    first = first_reading(table, source)
    if first.version != source.version:
        return _check_next(first, source)
    check_fields(table, source)
    return []


def _check_next(old: Source, new: Source, earlier: Sequence[Source] = ()) -> list[str]:
    if new.version != old.version + 1:
        raise SourceChanged(
            new.name, [f"its version is {new.version}, and that of its master table {old.version}"], old.version + 1
        )
    found = evolution(old, new, earlier)
    if found.refused:
        raise SourceChanged(new.name, list(found.refused))
    return list(found.changes) or ["nothing but the version"]


def _changed(old: Source, new: Source) -> SourceChanged:
    """Why a version cannot say something else than it said. The next one can, if nothing of it is refused."""
    found = evolution(old, new)
    changes = [*found.refused, *found.changes] or ["its records would be read otherwise"]
    return SourceChanged(new.name, changes, next_version=None if found.refused else old.version + 1)


def _of_columns(table: Path, source: Source) -> Source:
    """The first reading of a table that is older than readings: names and types of its columns."""
    if source.format != "json":  # columns do not say what schema they were read by
        why = f"it has version {source.version}, and nothing says what version 1 was. Start the archiver with that once"
        raise SourceChanged(source.name, [why])
    reading = {**source.reading, "version": 1, "fields": columns_of(table), "aliases": {}}
    try:
        return source.with_reading(reading)
    except DeclarationError as error:  # such as another id_field
        raise SourceChanged(source.name, [str(error)]) from None


def _read(table: Path, source: Source, name: str) -> Source:
    try:
        return source.with_reading(json.loads(_store(table).get(_name(int(name)))))
    except (OSError, ValueError, DeclarationError) as error:
        path = own_folder(table) / FOLDER / name
        raise ReadingDamaged(
            f"Source {source.name!r}: {str(path)!r} cannot be read as a reading ({error}). Restore it from a backup."
        ) from None


def _names(table: Path) -> list[str]:
    """Oldest first. Most tables have none."""
    folder = own_folder(table) / FOLDER
    if not folder.is_dir():
        return []
    return sorted(name.rpartition("/")[2] for name in _store(table).list(f"{FOLDER}/"))


def _name(version: int) -> str:
    return f"{FOLDER}/{version:0{DIGITS}}"


def _store(table: Path) -> PosixStore:
    return PosixStore(own_folder(table))
