"""Laws of the registry's state: folding depends on the records alone, and compaction takes nothing from it.

A history is what a registry writes: a version is numbered after the last one, a whole subject is deleted through its
last version, and only what is soft-deleted is hard-deleted, with a record of the highest id.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from master_dataset.registry.records import (
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
    decode,
    encode,
    version_record,
)
from master_dataset.registry.schemas import Reference, Schema
from master_dataset.registry.state import State, fold

SUBJECTS = st.sampled_from(["a", "b"])
SCHEMAS = st.sampled_from([Schema("1"), Schema("2"), Schema("3"), Schema("4", references=(Reference("r", "a", 1),))])
STEPS = st.one_of(
    st.tuples(st.just("register"), SUBJECTS, SCHEMAS),
    st.tuples(st.sampled_from(["delete", "delete hard"]), SUBJECTS, st.integers(0, 3)),
    st.tuples(st.just("delete subject"), SUBJECTS, st.none()),
    st.tuples(st.just("level"), SUBJECTS | st.none(), st.sampled_from(["FULL", "NONE"]) | st.none()),
    st.tuples(st.just("mode"), SUBJECTS | st.none(), st.sampled_from(["IMPORT", "READONLY"]) | st.none()),
)


def write(state: State, step: tuple[str, str, object]) -> list[Record]:
    """The records that a step adds to the topic."""
    match step:
        case ("register", subject, Schema() as schema):
            if state.find(subject, schema):
                return []
            schema_id = state.id_of(schema) or state.highest_id + 1
            return [version_record(SchemaVersion(subject, state.next_version(subject), schema_id, schema))]
        case ("delete", subject, int(index)):
            return [
                version_record(replace(each, deleted=True)) for each in state.versions_of(subject)[index : index + 1]
            ]
        case ("delete hard", subject, int(index)):
            deleted = [each for each in state.versions_of(subject, deleted=True) if each.deleted]
            hard = [Record(SchemaKey(subject, each.version), None) for each in deleted[index : index + 1]]
            return [Record(HighestIdKey(), HighestId(state.highest_id)), *hard] if hard else []
        case ("delete subject", subject, _):
            live = state.versions_of(subject)
            return [Record(DeleteSubjectKey(subject), DeleteSubject(live[-1].version))] if live else []
        case ("level", subject, level):
            return [Record(ConfigKey(subject), Config(str(level)) if level else None)]
        case ("mode", subject, mode):
            return [Record(ModeKey(subject), Mode(str(mode)) if mode else None)]
    raise AssertionError(step)


def history(steps: list[tuple[str, str, object]]) -> list[Record]:
    state, records = State(), []
    for step in steps:
        for record in write(state, step):
            state.apply(record)
            records.append(record)
    return records


def compact(records: list[Record], *, keep_tombstones: bool) -> list[Record]:
    """What Kafka leaves of a topic: the last record of each key, in order; tombstones for a while."""
    last = {encode(record)[0]: index for index, record in enumerate(records)}
    kept = [records[index] for index in sorted(last.values())]
    return [record for record in kept if keep_tombstones or record.value is not None]


def indexes(state: State) -> object:
    """What the state answers from its indexes."""
    ids = range(1, state.highest_id + 2)
    schemas = [version.schema for subject in "ab" for version in state.versions_of(subject, deleted=True)]
    return [state.schema(each) for each in ids], [state.id_of(each) for each in schemas]


@given(st.lists(STEPS, max_size=30))
def test_folding_is_deterministic_and_needs_the_bytes_only(steps: list[tuple[str, str, object]]) -> None:
    records = history(steps)
    read = [decode(*encode(record)) for record in records]
    assert fold(read) == fold(read)
    assert indexes(fold(read)) == indexes(fold(records))
    assert [encode(record) for record in read] == [encode(record) for record in records]


@given(st.lists(STEPS, max_size=30), st.integers(0, 30), st.booleans())
def test_compacted_topic_folds_to_the_same_state(
    steps: list[tuple[str, str, object]], compacted: int, keep_tombstones: bool
) -> None:
    records = history(steps)
    full = fold(records)
    left = fold([*compact(records[:compacted], keep_tombstones=keep_tombstones), *records[compacted:]])
    assert left == full
    assert left.highest_id == full.highest_id
    assert indexes(left) == indexes(full)


@given(st.lists(STEPS, max_size=30))
def test_an_id_never_means_two_schemas(steps: list[tuple[str, str, object]]) -> None:
    meanings: dict[int, set[Schema]] = {}
    for record in history(steps):
        if isinstance(record.value, SchemaVersion):
            meanings.setdefault(record.value.id, set()).add(record.value.schema)
    assert all(len(schemas) == 1 for schemas in meanings.values())
