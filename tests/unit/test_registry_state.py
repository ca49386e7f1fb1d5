"""The state of the registry, folded from records: tables of histories and what they leave."""

from __future__ import annotations

import pytest

from master_dataset.registry.records import (
    Config,
    ConfigKey,
    DeleteSubject,
    DeleteSubjectKey,
    Mode,
    ModeKey,
    OtherKey,
    Record,
    SchemaKey,
    SchemaVersion,
    version_record,
)
from master_dataset.registry.schemas import AVRO, JSON, Reference, Schema
from master_dataset.registry.state import fold

INT, LONG = Schema('"int"'), Schema('"long"')


def registered(subject: str, version: int, schema_id: int, schema: Schema = INT, *, deleted: bool = False) -> Record:
    return version_record(SchemaVersion(subject, version, schema_id, schema, deleted))


def hard_deleted(subject: str, version: int) -> Record:
    return Record(SchemaKey(subject, version), None)


def subject_deleted(subject: str, version: int) -> Record:
    return Record(DeleteSubjectKey(subject), DeleteSubject(version))


A1, A2, B1 = registered("a", 1, 1), registered("a", 2, 2, LONG), registered("b", 1, 1)

HISTORIES = [
    # records, live versions of "a", all versions of "a", live subjects, next version of "a"
    ([], [], [], [], 1),
    ([A1], [1], [1], ["a"], 2),
    ([A1, A2, B1], [1, 2], [1, 2], ["a", "b"], 3),
    ([A1, A2, registered("a", 2, 2, LONG, deleted=True)], [1], [1, 2], ["a"], 3),
    ([A1, registered("a", 1, 1, deleted=True)], [], [1], [], 2),
    ([A1, registered("a", 1, 1, deleted=True), A1], [1], [1], ["a"], 2),
    ([A1, registered("a", 1, 1, deleted=True), hard_deleted("a", 1)], [], [], [], 1),
    ([A1, A2, hard_deleted("a", 1)], [2], [2], ["a"], 3),
    ([hard_deleted("a", 1), A1], [1], [1], ["a"], 2),
    ([A1, A2, subject_deleted("a", 2), B1], [], [1, 2], ["b"], 3),
    ([A1, A2, subject_deleted("a", 1)], [2], [1, 2], ["a"], 3),
    ([A1, subject_deleted("a", 1), A2], [2], [1, 2], ["a"], 3),
    ([subject_deleted("a", 9), A1], [1], [1], ["a"], 2),
    ([A1, Record(DeleteSubjectKey("a"), None)], [1], [1], ["a"], 2),
]


@pytest.mark.parametrize(("records", "live", "every", "subjects", "following"), HISTORIES)
def test_history_leaves_these_versions(
    records: list[Record], live: list[int], every: list[int], subjects: list[str], following: int
) -> None:
    state = fold(records)
    assert [version.version for version in state.versions_of("a")] == live
    assert [version.version for version in state.versions_of("a", deleted=True)] == every
    assert state.subjects() == subjects
    assert state.next_version("a") == following


def test_equal_content_has_one_id_in_all_subjects() -> None:
    state = fold([A1, A2, B1])
    assert state.id_of(INT) == 1
    assert [(use.subject, use.version) for use in state.uses_of(1)] == [("a", 1), ("b", 1)]
    assert state.schema(1) == INT
    assert state.highest_id == 2


@pytest.mark.parametrize(
    "other",
    [
        Schema('"int" '),
        Schema('"int"', JSON),
        Schema('"int"', AVRO, (Reference("x", "x", 1),)),
        Schema('"int"', metadata="{}"),
    ],
)
def test_other_content_has_no_id(other: Schema) -> None:
    state = fold([A1])
    assert state.id_of(other) is None
    assert state.find("a", other) is None


def test_id_of_a_soft_deleted_schema_still_reads_data() -> None:
    state = fold([A1, subject_deleted("a", 1)])
    assert state.schema(1) == INT
    assert state.id_of(INT) == 1
    assert state.uses_of(1) == []
    assert state.find("a", INT) is None
    assert state.version("a", 1) is None
    deleted = state.version("a", 1, deleted=True)
    assert deleted is not None
    assert state.find("a", INT, deleted=True) == deleted


def test_hard_deleted_schema_is_gone_and_its_id_is_not_given_again() -> None:
    state = fold([A1, A2, hard_deleted("a", 2)])
    assert state.schema(2) is None
    assert state.id_of(LONG) is None
    assert state.highest_id == 2


def test_version_that_is_written_again_leaves_no_trace_of_its_former_id() -> None:
    state = fold([A1, registered("a", 1, 5, LONG)])
    assert (state.schema(1), state.id_of(INT)) == (None, None)
    assert (state.schema(5), state.id_of(LONG)) == (LONG, 5)


def test_newest_of_equal_versions_is_found() -> None:
    state = fold([A1, A2, registered("a", 3, 1)])
    found = state.find("a", INT)
    assert found is not None
    assert found.version == 3


def test_referencing_schemas_are_known_until_they_are_deleted() -> None:
    using = Schema('"x"', AVRO, (Reference("INT", "a", 1),))
    records = [A1, registered("c", 1, 7, using), registered("b", 1, 7, using)]
    state = fold(records)
    assert state.referenced_by("a", 1) == [7]
    assert state.referenced_by("a", 2) == []
    assert fold([*records, subject_deleted("c", 1), subject_deleted("b", 1)]).referenced_by("a", 1) == []


@pytest.mark.parametrize(
    ("records", "level"),
    [
        ([], "BACKWARD"),
        ([Record(ConfigKey(), Config("NONE"))], "NONE"),
        ([Record(ConfigKey("b"), Config("NONE"))], "BACKWARD"),
        ([Record(ConfigKey("a"), Config("FULL")), Record(ConfigKey(), Config("NONE"))], "FULL"),
        ([Record(ConfigKey("a"), Config("FULL")), Record(ConfigKey("a"), None)], "BACKWARD"),
        ([Record(ConfigKey(), Config("NONE")), Record(ConfigKey(), None)], "BACKWARD"),
    ],
)
def test_level_is_the_subjects_else_the_global_one(records: list[Record], level: str) -> None:
    assert fold(records).level("a") == level


@pytest.mark.parametrize(
    ("records", "mode"),
    [
        ([], "READWRITE"),
        ([Record(ModeKey(), Mode("READONLY"))], "READONLY"),
        ([Record(ModeKey("a"), Mode("IMPORT")), Record(ModeKey(), Mode("READONLY"))], "IMPORT"),
        ([Record(ModeKey("a"), Mode("IMPORT")), Record(ModeKey("a"), None)], "READWRITE"),
    ],
)
def test_mode_is_the_subjects_else_the_global_one(records: list[Record], mode: str) -> None:
    assert fold(records).mode("a") == mode


def test_records_of_other_features_are_named() -> None:
    state = fold([Record(OtherKey("NOOP"), None), Record(OtherKey("CONTEXT"), None), A1])
    assert state.not_understood == {"CONTEXT"}
    assert state == fold([A1])
