"""No id is given that a source has noted for another schema: records would be read with the wrong one, silently."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.settings import load_settings
from master_dataset.registry.errors import RegistryError
from master_dataset.registry.noted_ids import UNREADABLE, NotedIds, Taken
from master_dataset.registry.records import Record, SchemaKey, SchemaVersion
from master_dataset.registry.registry import Registry, Submitted
from master_dataset.registry.rules import register, set_mode
from master_dataset.registry.schemas import Schema
from master_dataset.registry.state import State
from master_dataset.registry.topic import Decision, SchemasTopic
from master_dataset.writer_schemas.id_check import check_ids, differences
from views.formats.writer_schemas import WriterSchema
from views.source import Source

OLD = '{"type":"record","name":"Old","fields":[{"name":"a","type":"long"}]}'
NEW = '{"type":"record","name":"New","fields":[{"name":"b","type":"long"}]}'
READER = json.dumps(
    {
        "type": "record",
        "name": "Event",
        "fields": [
            {"name": "event_id", "type": "string"},
            {"name": "event_time", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        ],
    }
)


def note(master: Path, name: str, content: Any, source: str = "web") -> None:
    path = master / f"{source}.proofs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def schema(text: str) -> dict[str, Any]:
    return {"schemaType": "AVRO", "schema": text, "references": []}


def state_with(*versions: tuple[str, int, str], mode: str | None = None) -> State:
    state = State()
    for subject, schema_id, text in versions:
        state.apply(Record(SchemaKey(subject, 1), SchemaVersion(subject, 1, schema_id, Schema(text))))
    for record in set_mode(state, None, mode, force=True).records if mode else ():
        state.apply(record)
    return state


@pytest.fixture
def master(tmp_path: Path) -> Path:
    """The master dataset of a home in which two sources noted ids."""
    folder = tmp_path / "master"
    note(folder, "schemas/1", schema(OLD))
    note(folder, "schemas/7", schema(OLD), "clicks")
    note(folder, "schemas/900", {"unknown_at": "2026-11-18T20:08:00+00:00"})
    note(folder, "schemas/89791762-2336-186f-7b3a-d5c0f7b0a5f1", schema(NEW))
    return folder


def test_notes_of_all_sources_are_read_and_unknown_ids_are_none(master: Path) -> None:
    old = WriterSchema("AVRO", OLD)
    ids = NotedIds.of(load_settings(home=master.parent))
    assert ids.read() == {1: {old}, 7: {old}}
    note(master, "schemas/8", b"damaged")
    note(master, "schemas/1", schema(NEW), "clicks")
    note(master, "later_schemas/900", {"asked_again_at": "2026-11-19T08:00:00+00:00"})
    assert ids.read() == {1: {old, WriterSchema("AVRO", NEW)}, 7: {old}, 8: {UNREADABLE}}
    note(master, "later_schemas/900", {"from": {"0": 5}, **schema(OLD)})
    assert ids.read()[900] == {old}, "it was found since"
    assert NotedIds(master / "missing").read() == {}


def registering(master: Path, state: State) -> Callable[..., SchemaVersion]:
    """Registers at a registry that has this state; the records that it writes are applied."""

    def register_one(subject: str, text: str, schema_id: int | None = None) -> SchemaVersion:
        async def ask() -> SchemaVersion:
            topic = SchemasTopic({}, None)  # type: ignore[arg-type]  # it is never asked
            topic.problem, topic.state = None, state

            async def write(decide: Callable[[State], Decision]) -> Any:
                decision = decide(state)
                for record in decision.records:
                    state.apply(record)
                return decision.result

            topic.write = write  # type: ignore[method-assign]  # Kafka is no matter of this test
            registry = Registry(topic, NotedIds(master).read)
            return await registry.register(subject, Submitted(Schema(text), schema_id), normalize=False)

        return asyncio.run(ask())

    return register_one


def test_registry_that_begins_again_goes_on_above_the_noted_ids(master: Path) -> None:
    register_one = registering(master, State())
    assert register_one("new-value", NEW).id == 8
    assert register_one("old-value", OLD).id == 9
    assert register_one("new-value", NEW).id == 8, "it is registered already"


def test_version_whose_id_stands_for_another_schema_is_refused_until_it_gets_another(master: Path) -> None:
    state = state_with(("new-value", 1, NEW))
    register_one = registering(master, state)
    with pytest.raises(RegistryError, match="has id 1, which records of a source name") as refused:
        register_one("new-value", NEW)
    assert refused.value.code == 42205
    assert register_one("another-value", NEW).id == 8, "also where the content has that id"
    state.apply(Record(SchemaKey("new-value", 1), None))
    assert register_one("new-value", NEW).id == 8


@pytest.mark.parametrize("text", [OLD, json.dumps(json.loads(OLD), indent=1)], ids=["as it is stored", "other blanks"])
def test_noted_id_is_imported_for_its_own_schema_alone(tmp_path: Path, text: str) -> None:
    note(tmp_path, "schemas/1", schema(text))
    register_one = registering(tmp_path, state_with(mode="IMPORT"))
    with pytest.raises(RegistryError, match="Schema id 1 cannot be imported"):
        register_one("new-value", NEW, 1)
    assert register_one("old-value", OLD, 1).id == 1
    assert register_one("new-value", NEW, 2).id == 2


def test_rule_itself_refuses_what_changed_meanwhile() -> None:
    taken = Taken(7, frozenset({1}))
    with pytest.raises(RegistryError, match="has id 1"):
        register(state_with(("s", 1, NEW)), "s", Schema(NEW), None, None, taken)
    assert register(state_with(("s", 40, OLD)), "t", Schema(NEW), None, None, taken).result.id == 41


def messages(noted: dict[int, str], registered: dict[int, str], *, is_own: bool = True) -> list[str]:
    schemas = {schema_id: WriterSchema("AVRO", text) for schema_id, text in registered.items()}
    by_id = {schema_id: frozenset({WriterSchema("AVRO", text)}) for schema_id, text in noted.items()}
    return differences(by_id, schemas.get, is_own=is_own)


def test_rebase_says_which_ids_stand_for_other_schemas_now() -> None:
    assert messages({1: OLD, 7: NEW}, {1: OLD, 7: NEW, 8: OLD}) == []
    (wrong,) = messages({1: OLD, 7: NEW}, {1: NEW, 7: NEW})
    assert "other schemas under schema id 1 than" in wrong
    (lost,) = messages({1: OLD, 7: NEW}, {1: OLD})
    assert "does not know schema id 7, which" in lost
    assert "New schemas get higher ids" in lost
    wrong, lost = messages(dict.fromkeys(range(1, 30), OLD), {1: NEW}, is_own=False)
    assert "no id up to 29" in lost
    assert ", 21 and 8 more" in lost


def test_ids_of_the_rebased_source_alone_are_compared(master: Path) -> None:
    settings = load_settings(home=master.parent, registry_enabled=False)
    web = Source("web", format="avro", reader_schema=READER)
    (sentence,) = check_ids(settings, web)
    assert sentence.startswith("The schema ids of web could not be compared with the registry: ")
    assert check_ids(settings, Source("orders", format="avro", reader_schema=READER)) == []
    assert check_ids(settings, Source("clicks", fields="event_id string, event_time timestamp")) == []
