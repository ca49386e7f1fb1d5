"""What our own registry says of the frame of a record: a schema with what it refers to, nothing, or not yet."""

from __future__ import annotations

import pytest

from master_dataset.registry.records import HighestId, HighestIdKey, OtherKey, Record, SchemaKey, SchemaVersion
from master_dataset.registry.schemas import Reference, Schema, guid
from master_dataset.registry.state import fold
from master_dataset.writer_schemas.own_registry import schema_in
from master_dataset.writer_schemas.registry import RegistryAway
from views.formats.framing import GUID_BYTE, frame_of_id
from views.formats.writer_schemas import WriterSchema


def record(subject: str, schema_id: int, schema: Schema, *, deleted: bool = False) -> Record:
    return Record(SchemaKey(subject, 1), SchemaVersion(subject, 1, schema_id, schema, deleted))


def referring(text: str, *names: str) -> Schema:
    return Schema(text, references=tuple(Reference(name, f"of {name}", 1) for name in names))


A, B, TOP = referring("A", "b"), referring("B"), referring("top", "a", "b")
STATE = fold([record("of b", 1, B, deleted=True), record("of a", 2, A), record("top", 3, TOP)])


def test_a_schema_comes_with_all_that_it_refers_to_dependencies_first() -> None:
    assert schema_in(STATE, frame_of_id(3)) == WriterSchema("AVRO", "top", (("b", "B"), ("a", "A")))


def test_a_schema_that_is_soft_deleted_is_still_there_for_its_records() -> None:
    assert schema_in(STATE, frame_of_id(1)) == WriterSchema("AVRO", "B")


def test_a_schema_is_found_by_its_guid() -> None:
    digest = TOP.md5
    assert digest is not None
    assert guid(digest) in {version.guid for version in STATE.uses_of(3)}
    assert schema_in(STATE, GUID_BYTE + digest) == schema_in(STATE, frame_of_id(3))
    assert schema_in(STATE, GUID_BYTE + bytes(16)) is None


@pytest.mark.parametrize("schema_id", [0, 4, 2**32 - 1])
def test_an_id_that_was_never_given_is_unknown(schema_id: int) -> None:
    assert schema_in(STATE, frame_of_id(schema_id)) is None


def test_records_wait_for_a_registry_that_has_nothing() -> None:
    for records in ([], [Record(OtherKey("NOOP"), None)]):
        with pytest.raises(RegistryAway, match="nothing is registered in the schema registry of this home"):
            schema_in(fold(records), frame_of_id(1))


def test_a_registry_from_which_all_was_deleted_knows_nothing() -> None:
    assert schema_in(fold([Record(HighestIdKey(), HighestId(3))]), frame_of_id(3)) is None


def test_records_wait_where_a_reference_is_missing() -> None:
    with pytest.raises(RegistryAway, match="Schema 3 of the schema registry of this home cannot be read: No schema"):
        schema_in(fold([record("top", 3, TOP)]), frame_of_id(3))
