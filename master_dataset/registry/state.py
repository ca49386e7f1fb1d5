"""What the registry knows: the records of `_schemas`, folded in the order of their offsets.

Every replica folds the same records, so all of them come to the same state. Compaction leaves the last record of each
key, and the state that these fold to is the same. A hard delete also records the highest id, which would be lost with
the schema that has it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from master_dataset.registry.records import (
    Config,
    ConfigKey,
    DeleteSubject,
    DeleteSubjectKey,
    HighestId,
    HighestIdKey,
    Mode,
    ModeKey,
    OtherKey,
    Record,
    SchemaKey,
    SchemaVersion,
)
from master_dataset.registry.schemas import Schema

DEFAULT_LEVEL = "BACKWARD"
DEFAULT_MODE = "READWRITE"
HARMLESS_KEYS = frozenset({"NOOP"})

Indexed = TypeVar("Indexed")


@dataclass
class State:
    """Subjects with their versions, levels and modes. Changed by `apply` only; not for several threads.

    A soft-deleted version keeps its number and its id, and answers only who asks for deleted ones.
    """

    versions: dict[str, dict[int, SchemaVersion]] = field(default_factory=dict)
    levels: dict[str | None, str] = field(default_factory=dict)
    modes: dict[str | None, str] = field(default_factory=dict)
    highest_id: int = field(default=0, compare=False)
    not_understood: set[str] = field(default_factory=set, compare=False)
    """The key types of records of features that this registry does not have."""
    _keys_of_id: dict[int, set[SchemaKey]] = field(default_factory=lambda: defaultdict(set), compare=False, repr=False)
    _ids_of_schema: dict[Schema, dict[SchemaKey, int]] = field(
        default_factory=lambda: defaultdict(dict), compare=False, repr=False
    )

    _keys_of_guid: dict[str, set[SchemaKey]] = field(
        default_factory=lambda: defaultdict(set), compare=False, repr=False
    )
    _referrers: dict[tuple[str, int], set[SchemaKey]] = field(
        default_factory=lambda: defaultdict(set), compare=False, repr=False
    )

    def apply(self, record: Record) -> None:
        """Fold the next record."""
        match record:
            case Record(SchemaKey() as key, SchemaVersion() as version):
                self._remove(key)
                self._add(key, version)
            case Record(SchemaKey() as key, None):
                self._remove(key)
            case Record(ConfigKey(subject), Config(level)):
                self.levels[subject] = level
            case Record(ConfigKey(subject), None):
                self.levels.pop(subject, None)
            case Record(ModeKey(subject), Mode(mode)):
                self.modes[subject] = mode
            case Record(ModeKey(subject), None):
                self.modes.pop(subject, None)
            case Record(DeleteSubjectKey(subject), DeleteSubject(last)):
                self._delete_through(subject, last)
            case Record(HighestIdKey(), HighestId(highest)):
                self.highest_id = max(self.highest_id, highest)
            case Record(OtherKey(keytype), _) if keytype not in HARMLESS_KEYS:
                self.not_understood.add(keytype)

    def subjects(self, *, deleted: bool = False) -> list[str]:
        """The subjects that have a version, in order; with `deleted`, also those that have soft-deleted ones only."""
        return sorted(subject for subject in self.versions if self.versions_of(subject, deleted=deleted))

    def versions_of(self, subject: str, *, deleted: bool = False) -> list[SchemaVersion]:
        """The versions of a subject, oldest first; with `deleted`, also the soft-deleted ones."""
        versions = self.versions.get(subject, {})
        return [versions[number] for number in sorted(versions) if deleted or not versions[number].deleted]

    def version(self, subject: str, number: int, *, deleted: bool = False) -> SchemaVersion | None:
        """One version of a subject."""
        version = self.versions.get(subject, {}).get(number)
        return None if version is None or (version.deleted and not deleted) else version

    def find(self, subject: str, schema: Schema, *, deleted: bool = False) -> SchemaVersion | None:
        """The newest version of a subject that has this content."""
        versions = self.versions_of(subject, deleted=deleted)
        return next((version for version in reversed(versions) if version.schema == schema), None)

    def next_version(self, subject: str) -> int:
        """The number that the next version of a subject gets. Soft-deleted versions keep theirs."""
        return max(self.versions.get(subject, {}), default=0) + 1

    def id_of(self, schema: Schema, without: Collection[int] = ()) -> int | None:
        """The id of this content, wherever it is registered, soft-deleted or not; the lowest, if it has several."""
        found = (each for each in self._ids_of_schema.get(schema, {}).values() if each not in without)
        return min(found, default=None)

    def uses_of(self, schema_id: int, *, deleted: bool = False) -> list[SchemaVersion]:
        """The versions that have an id, ordered by subject and version."""
        return self._versions_at(self._keys_of_id.get(schema_id, ()), deleted=deleted)

    def uses_of_guid(self, schema_guid: str) -> list[SchemaVersion]:
        """The versions that have a GUID, soft-deleted or not, ordered by subject and version."""
        return self._versions_at(self._keys_of_guid.get(schema_guid, ()), deleted=True)

    def schema(self, schema_id: int) -> Schema | None:
        """The content of an id. Soft-deleted schemas are found too: records that were written with them remain."""
        return next((version.schema for version in self.uses_of(schema_id, deleted=True)), None)

    def referenced_by(self, subject: str, number: int) -> list[int]:
        """The ids of the schemas that refer to a version and are not deleted, in order."""
        return sorted({version.id for version in self._versions_at(self._referrers.get((subject, number), ()))})

    def level(self, subject: str) -> str:
        """The compatibility level that counts for a subject: its own, else the global one."""
        return self.levels.get(subject) or self.levels.get(None) or DEFAULT_LEVEL

    def mode(self, subject: str) -> str:
        """The mode that counts for a subject: its own, else the global one."""
        return self.modes.get(subject) or self.modes.get(None) or DEFAULT_MODE

    def _versions_at(self, keys: Iterable[SchemaKey], *, deleted: bool = False) -> list[SchemaVersion]:
        ordered = sorted(keys, key=lambda key: (key.subject, key.version))
        versions = (self.versions[key.subject][key.version] for key in ordered)
        return [version for version in versions if deleted or not version.deleted]

    def _add(self, key: SchemaKey, version: SchemaVersion) -> None:
        self.versions.setdefault(key.subject, {})[key.version] = version
        self._keys_of_id[version.id].add(key)
        self._ids_of_schema[version.schema][key] = version.id
        if version.guid is not None:
            self._keys_of_guid[version.guid].add(key)
        for reference in version.schema.references:
            self._referrers[reference.subject, reference.version].add(key)
        self.highest_id = max(self.highest_id, version.id)

    def _remove(self, key: SchemaKey) -> None:
        versions = self.versions.get(key.subject, {})
        version = versions.pop(key.version, None)
        if version is None:
            return
        if not versions:
            del self.versions[key.subject]
        _discard(self._keys_of_id, version.id, key)
        if version.guid is not None:
            _discard(self._keys_of_guid, version.guid, key)
        for reference in version.schema.references:
            _discard(self._referrers, (reference.subject, reference.version), key)
        del self._ids_of_schema[version.schema][key]
        if not self._ids_of_schema[version.schema]:
            del self._ids_of_schema[version.schema]

    def _delete_through(self, subject: str, last: int) -> None:
        versions = self.versions.get(subject, {})
        for number, version in versions.items():
            if number <= last:
                versions[number] = replace(version, deleted=True)


def _discard(index: dict[Indexed, set[SchemaKey]], entry: Indexed, key: SchemaKey) -> None:
    if entry in index:
        index[entry].discard(key)
        if not index[entry]:
            del index[entry]


def fold(records: Iterable[Record]) -> State:
    """The state after these records, which come in the order of their offsets."""
    state = State()
    for record in records:
        state.apply(record)
    return state
