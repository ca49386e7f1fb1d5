"""Writer schemas come from the registry once, and stay as they were answered."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.settings import Settings, load_settings
from master_dataset.errors import MasterDatasetError
from master_dataset.table.paths import own_folder, table_path
from master_dataset.writer_schemas import noted as noted_module
from master_dataset.writer_schemas.noted import NotedSchemas
from master_dataset.writer_schemas.registry import RegistryAway, SchemaRegistry
from tests.schema_registry import Registry, running_registry
from views.formats.framing import frame_of_id
from views.formats.writer_schemas import WriterSchema
from views.source import Source

READER = '{"type":"record","name":"Order","fields":[{"name":"event_id","type":"string"},' \
    '{"name":"event_time","type":{"type":"long","logicalType":"timestamp-millis"}}]}'  # fmt: skip
SOURCE = Source("orders", format="avro", reader_schema=READER)
GUID = b"\x01" + bytes(range(16))
ONE, TWO, THREE = map(frame_of_id, (1, 2, 3))


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as running:
        yield running


def settings_of(registry: Registry, home: Path, **more: Any) -> Settings:
    return load_settings(home=home, schema_registry_url=registry.url, **more)


def test_a_schema_is_read_with_all_that_it_refers_to_dependencies_first(registry: Registry, tmp_path: Path) -> None:
    def reference(name: str) -> dict[str, Any]:
        return {"name": name, "subject": f"of {name}", "version": 2}

    registry.add(1, "top", references=[reference("a"), reference("c")])
    registry.put("/subjects/of%20a/versions/2", {"schema": "A", "references": [reference("b")]})
    registry.put("/subjects/of%20b/versions/2", {"schema": "B"})
    registry.put("/subjects/of%20c/versions/2", {"schema": "C", "references": [reference("b")]})
    registry.put("/schemas/guids/00010203-0405-0607-0809-0a0b0c0d0e0f", {"schema": "{}", "schemaType": "JSON"})
    client = SchemaRegistry(settings_of(registry, tmp_path))
    assert client.schema_of(ONE) == WriterSchema("AVRO", "top", (("b", "B"), ("a", "A"), ("c", "C")))
    assert client.schema_of(GUID) == WriterSchema("JSON", "{}")
    assert client.schema_of(TWO) is None


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"<html>no such page</html>"),
        (404, b'{"error_code":404,"message":"HTTP 404 Not Found"}'),
        (200, b"{}"),
        (200, b"[1]"),
        (200, b"["),
        (200, b'{"schema":"{}","references":[{"name":1}]}'),
        (200, b'{"schema":"{}","references":7}'),
        (200, b'{"schema":"{}","references":[7]}'),
        (500, b'{"error_code":50001,"message":"Error in the backend data store"}'),
        (401, b'{"error_code":401,"message":"Unauthorized"}'),
        (302, b""),
    ],
)
def test_what_is_no_answer_of_a_registry_is_never_taken_for_an_unknown_schema(
    registry: Registry, tmp_path: Path, status: int, body: bytes
) -> None:
    registry.replies["/schemas/ids/1"] = status, body
    noted = NotedSchemas(settings_of(registry, tmp_path), SOURCE)
    with pytest.raises(RegistryAway, match=r"schema_registry_url|references"):
        noted.resolve([ONE])
    assert noted.known() == {}
    registry.add(1, READER)
    assert noted.resolve([ONE])


def test_references_in_a_circle_are_refused(registry: Registry, tmp_path: Path) -> None:
    around = [{"name": "a", "subject": "a", "version": 1}]
    registry.add(1, "top", references=around)
    registry.put("/subjects/a/versions/1", {"schema": "A", "references": around})
    with pytest.raises(RegistryAway, match="over 200 references, or one to itself"):
        SchemaRegistry(settings_of(registry, tmp_path)).schema_of(ONE)


def test_a_registry_that_does_not_listen_or_is_not_named_makes_records_wait(tmp_path: Path) -> None:
    away = load_settings(home=tmp_path, schema_registry_url="http://127.0.0.1:1")
    with pytest.raises(RegistryAway, match="did not answer"):
        SchemaRegistry(away).schema_of(ONE)
    nowhere = NotedSchemas(load_settings(home=tmp_path, registry_enabled=False), SOURCE)
    with pytest.raises(RegistryAway, match="schema_registry_url is not set, and registry_enabled is off"):
        nowhere.resolve([ONE])


def test_user_and_password_are_sent(registry: Registry, tmp_path: Path) -> None:
    registry.add(1, READER)
    registry.login = f"Basic {base64.b64encode(b'tidemark:secret').decode()}"
    signed_in = settings_of(registry, tmp_path, schema_registry_username="tidemark", schema_registry_password="secret")
    assert SchemaRegistry(signed_in).schema_of(ONE) == WriterSchema("AVRO", READER)
    with pytest.raises(RegistryAway, match="401"):
        SchemaRegistry(settings_of(registry, tmp_path)).schema_of(ONE)


def test_both_layers_go_by_the_first_answer_whatever_the_registry_says_later(
    registry: Registry, tmp_path: Path
) -> None:
    settings = settings_of(registry, tmp_path)
    registry.add(1, READER)
    archiver, speed = NotedSchemas(settings, SOURCE), NotedSchemas(settings, SOURCE)
    assert archiver.resolve([ONE, TWO])
    assert archiver.known() == {ONE: WriterSchema("AVRO", READER)}
    asked = list(registry.asked)
    registry.add(1, "changed")
    registry.add(2, READER)
    assert speed.without_answer({ONE, TWO, THREE}) == {ONE, THREE}
    assert not speed.resolve([TWO])
    assert speed.known() == archiver.known() == NotedSchemas(settings, SOURCE).known()
    assert registry.asked == asked
    registry.is_away = True
    assert not archiver.without_answer({TWO})
    with pytest.raises(RegistryAway):
        archiver.resolve([THREE])


def test_a_schema_that_the_other_layer_found_meanwhile_is_found_again(registry: Registry, tmp_path: Path) -> None:
    settings = settings_of(registry, tmp_path)
    registry.add(3, READER)
    archiver, speed = NotedSchemas(settings, SOURCE), NotedSchemas(settings, SOURCE)
    assert speed.resolve([THREE])
    assert archiver.without_answer({THREE}) == {THREE}, "it is known, so what was read without it is read again"
    assert archiver.resolve([THREE])
    assert registry.asked == ["/schemas/ids/3"]


def test_random_ids_do_not_fill_the_disk(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noted_module, "MAX_UNKNOWN", 2)
    registry.add(9, READER)
    noted = NotedSchemas(settings_of(registry, tmp_path), SOURCE)
    assert noted.resolve(map(frame_of_id, range(1, 10)))
    noted = own_folder(table_path(load_settings(home=tmp_path), "orders")) / "schemas"
    assert sorted(path.name for path in noted.iterdir()) == ["1", "2", "9"]


def test_a_damaged_note_is_refused_with_its_remedy(registry: Registry, tmp_path: Path) -> None:
    settings = settings_of(registry, tmp_path)
    registry.add(1, READER)
    NotedSchemas(settings, SOURCE).resolve([ONE])
    noted = own_folder(table_path(settings, "orders")) / "schemas" / "1"
    noted.write_text("{")
    with pytest.raises(MasterDatasetError, match=r"'schemas/1' .* is damaged. Remove it"):
        NotedSchemas(settings, SOURCE).known()
    noted.unlink()
    assert NotedSchemas(settings, SOURCE).resolve([ONE])
