"""What requests do to the state: pure functions that give the records to write, or raise a `RegistryError`."""

from __future__ import annotations

from dataclasses import replace

from master_dataset.registry.errors import (
    RegistryError,
    not_permitted,
    shown,
    subject_not_found,
    version_not_found,
)
from master_dataset.registry.noted_ids import NOTHING_TAKEN, Taken
from master_dataset.registry.records import (
    MAX_INT32,
    Config,
    ConfigKey,
    DeleteSubject,
    DeleteSubjectKey,
    HighestId,
    HighestIdKey,
    Mode,
    ModeKey,
    Record,
    SchemaKey,
    SchemaVersion,
    version_record,
)
from master_dataset.registry.schemas import Schema
from master_dataset.registry.state import DEFAULT_LEVEL, DEFAULT_MODE, State
from master_dataset.registry.topic import Decision
from views.schemas import LEVELS

READWRITE, READONLY, IMPORT = "READWRITE", "READONLY", "IMPORT"
MODES = (READWRITE, READONLY, "READONLY_OVERRIDE", IMPORT)


def register(
    state: State,
    subject: str,
    schema: Schema,
    schema_id: int | None,
    number: int | None,
    taken: Taken = NOTHING_TAKEN,
) -> Decision:
    """Add a version, unless the subject has this content already. Compatibility was checked before.

    An id, and perhaps a version, are given by whoever imports from another registry. No id is given that a source has
    noted for another schema.
    """
    known = state.find(subject, schema)
    if known is not None and schema_id in (None, known.id) and number in (None, known.version):
        check_not_taken(known, taken)
        return Decision([], known)
    check_mode(state, subject, importing=schema_id is not None)
    following = state.next_version(subject)
    if schema_id is None:
        if number not in (None, following):
            raise RegistryError(
                42202, f"Version {number} is not the next one of {shown(subject)}; that is {following}."
            )
        schema_id = state.id_of(schema, taken.others) or max(state.highest_id, taken.highest) + 1
        if schema_id > MAX_INT32:
            raise RegistryError(50001, f"All {MAX_INT32} ids are given. Nothing was registered.")
        version = SchemaVersion(subject, following, schema_id, schema)
    else:
        holder = state.schema(schema_id)
        if holder is not None and holder != schema:
            raise not_permitted(f"Overwrite new schema with id {schema_id} is not permitted.")
        if schema_id in taken.others:
            raise not_permitted(
                f"Schema id {schema_id} cannot be imported: records of a source name it, and they were written with "
                "another schema. They are read by that one, and so would be all records to come."
            )
        version = SchemaVersion(subject, number or following, schema_id, schema)
        older = state.version(subject, version.version, deleted=True)
        if older is not None and older.schema != schema:
            raise not_permitted(f"Overwrite version {version.version} of {shown(subject)} is not permitted.")
    if version.version > MAX_INT32:
        raise not_permitted(f"{shown(subject)} has version {MAX_INT32}, which is the last. Nothing was registered.")
    return Decision([version_record(version)], version)


def delete_version(state: State, subject: str, number: int, *, permanent: bool) -> Decision:
    """Delete one version softly, or for good what is deleted softly already."""
    check_mode(state, subject, importing=None)
    check_subject(state, subject, deleted=True)
    version = state.version(subject, number, deleted=True)
    if version is None:
        raise version_not_found(number)
    if not permanent:
        if version.deleted:
            raise RegistryError(
                40406,
                f"Subject {shown(subject)} Version {number} was soft deleted. Set permanent=true to delete permanently",
            )
        _check_unreferenced(state, version)
        return Decision([version_record(replace(version, deleted=True))], number)
    if not version.deleted:
        raise RegistryError(
            40407,
            f"Subject {shown(subject)} Version {number} was not deleted first before being permanently deleted",
        )
    _check_unreferenced(state, version)
    return Decision([_highest_id(state), _tombstone(version)], number)


def delete_subject(state: State, subject: str, *, permanent: bool) -> Decision:
    """Delete all versions of a subject softly, or for good once they all are; with its level and mode."""
    check_mode(state, subject, importing=None)
    check_subject(state, subject, deleted=True)
    live, every = state.versions_of(subject), state.versions_of(subject, deleted=True)
    if permanent:
        if live:
            raise RegistryError(
                40405, f"Subject {shown(subject)} was not deleted first before being permanently deleted"
            )
        for version in every:
            _check_unreferenced(state, version)
        return Decision([_highest_id(state), *map(_tombstone, every)], [version.version for version in every])
    if not live:
        raise RegistryError(
            40404, f"Subject {shown(subject)} was soft deleted. Set permanent=true to delete permanently"
        )
    for version in live:
        _check_unreferenced(state, version)
    records = [Record(DeleteSubjectKey(subject), DeleteSubject(live[-1].version))]
    records += [Record(ModeKey(subject), None)] if subject in state.modes else []
    records += [Record(ConfigKey(subject), None)] if subject in state.levels else []
    return Decision(records, [version.version for version in live])


def set_level(state: State, subject: str | None, level: object) -> Decision:
    """Give a subject its own compatibility level, or all others the global one."""
    if not isinstance(level, str) or level.upper() not in LEVELS:
        raise RegistryError(42203, f"Invalid compatibility level {shown(level)}. Valid values are {', '.join(LEVELS)}.")
    if _is_readonly(state, subject):
        raise not_permitted(f"Subject {shown(subject)} is in read-only mode")
    return Decision([Record(ConfigKey(subject), Config(level.upper()))], level.upper())


def clear_level(state: State, subject: str | None) -> Decision:
    """Take a subject's own level away, or set the global one back; the result is the level that it was."""
    if subject is not None and subject not in state.levels:
        raise no_level(subject)
    return Decision(
        [Record(ConfigKey(subject), None)] if subject in state.levels else [], state.levels.get(subject, DEFAULT_LEVEL)
    )


def set_mode(state: State, subject: str | None, mode: object, *, force: bool) -> Decision:
    """Give a subject its own mode, or all others the global one. IMPORT begins with nothing, unless it is forced."""
    if not isinstance(mode, str) or mode.upper() not in MODES:
        raise RegistryError(42204, f"Invalid mode {shown(mode)}. Valid values are {', '.join(MODES)}.")
    if is_import(mode) and not force and state.mode(subject or "") != IMPORT:
        live = [subject] if subject is not None and state.versions_of(subject) else []
        if live or (subject is None and state.subjects()):
            raise not_permitted("Cannot import since found existing subjects")
    return Decision([Record(ModeKey(subject), Mode(mode.upper()))], mode.upper())


def is_import(mode: object) -> bool:
    """Whether this is the mode in which registrations bring their ids."""
    return isinstance(mode, str) and mode.upper() == IMPORT


def clear_mode(state: State, subject: str | None) -> Decision:
    """Take a subject's own mode away, or set the global one back; the result is the mode that it was."""
    if subject is not None and subject not in state.modes:
        raise no_mode(subject)
    return Decision(
        [Record(ModeKey(subject), None)] if subject in state.modes else [], state.modes.get(subject, DEFAULT_MODE)
    )


def no_level(subject: str) -> RegistryError:
    """40408."""
    return RegistryError(40408, f"Subject {shown(subject)} does not have subject-level compatibility configured")


def no_mode(subject: str) -> RegistryError:
    """40409."""
    return RegistryError(40409, f"Subject {shown(subject)} does not have subject-level mode configured")


def check_subject(state: State, subject: str, *, deleted: bool = False) -> None:
    """Raise 40401 unless a subject has a version."""
    if not state.versions_of(subject, deleted=deleted):
        raise subject_not_found(subject)


def check_mode(state: State, subject: str, *, importing: bool | None) -> None:
    """Raise 42205 unless the mode of a subject allows the change. None: one that is no registration."""
    if _is_readonly(state, subject):
        raise not_permitted(f"Subject {shown(subject)} is in read-only mode")
    brings_ids = is_import(state.mode(subject))
    if importing and not brings_ids:
        raise not_permitted(f"Subject {shown(subject)} is not in import mode")
    if importing is False and brings_ids:
        raise not_permitted(f"Subject {shown(subject)} is in import mode: a schema needs an id")


def check_not_taken(version: SchemaVersion, taken: Taken) -> None:
    """Raise 42205 where records that name the id of this version would be read with another schema."""
    if version.id in taken.others:
        raise not_permitted(
            f"Version {version.version} of {shown(version.subject)} has id {version.id}, which records of a source "
            "name that were written with another schema: whatever is written with this id now would be read wrongly. "
            "Delete the version, permanently too, and register it again: it gets another id."
        )


def _is_readonly(state: State, subject: str | None) -> bool:
    """READONLY_OVERRIDE as the global mode stands above those of subjects."""
    if state.modes.get(None) == "READONLY_OVERRIDE":
        return True
    return state.mode(subject or "").startswith(READONLY)


def _check_unreferenced(state: State, version: SchemaVersion) -> None:
    if referrers := state.referenced_by(version.subject, version.version):
        raise RegistryError(
            42206,
            f"One or more references exist to the schema {{magic=1,keytype=SCHEMA,subject={version.subject},"
            f"version={version.version}}}: the schemas with the ids {', '.join(map(str, referrers[:20]))}.",
        )


def _tombstone(version: SchemaVersion) -> Record:
    return Record(SchemaKey(version.subject, version.version), None)


def _highest_id(state: State) -> Record:
    """Kept by compaction, so that the id of what is deleted is never given again."""
    return Record(HighestIdKey(), HighestId(state.highest_id))
