"""The records of the schema registry in a backup: what they come to stays the same, and nothing is lost silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.home import Home
from infra.settings import Settings, load_settings
from master_dataset.errors import MasterDatasetError
from master_dataset.registry.records import (
    NOOP,
    Config,
    ConfigKey,
    HighestId,
    HighestIdKey,
    Record,
    SchemaKey,
    SchemaVersion,
    encode,
)
from master_dataset.registry.saved_records import (
    RawRecord,
    compacted,
    is_empty,
    missing_from,
    put_back,
    read_file,
    restored_file,
    state_of,
    to_lines,
)
from master_dataset.registry.schemas import Schema
from tests.hand_made_table import Table, append
from tidemark.backup import schemas as backup_schemas
from tidemark.backup.backup import back_up
from tidemark.backup.restore import restore


def version(subject: str, number: int, schema_id: int, text: str, *, deleted: bool = False) -> RawRecord:
    return encode(Record(SchemaKey(subject, number), SchemaVersion(subject, number, schema_id, Schema(text), deleted)))


def tombstone(subject: str, number: int) -> RawRecord:
    return encode(Record(SchemaKey(subject, number), None))


RECORDS = [
    encode(NOOP),
    version("web-value", 1, 1, '"int"'),
    encode(Record(ConfigKey("web-value"), Config("NONE"))),
    version("web-value", 2, 2, '"string"'),
    version("web-value", 1, 1, '"int"', deleted=True),
    encode(Record(HighestIdKey(), HighestId(2))),
    tombstone("web-value", 2),
    encode(NOOP),
    (b"no JSON", b"of somebody"),
]


def test_saved_records_come_to_the_same_state_in_their_order(tmp_path: Path) -> None:
    kept = compacted(RECORDS)
    assert kept == [RECORDS[2], *RECORDS[4:]], "the last of each key, where it was"
    path = tmp_path / "schemas.ndjson"
    path.write_bytes(to_lines(kept))
    assert read_file(path) == kept
    found = state_of(read_file(path))
    assert found == state_of(RECORDS)
    assert (found.highest_id, found.level("web-value")) == (2, "NONE")


@pytest.mark.parametrize("content", [b"{", b'{"key":"!","value":null}', b'{"value":null}', b"[]"])
def test_damaged_file_is_refused_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "schemas.ndjson"
    path.write_bytes(content)
    with pytest.raises(MasterDatasetError, match="Restore it from a backup, or remove it"):
        put_back({}, path)
    assert path.exists()


def test_nothing_to_put_back_asks_no_kafka(tmp_path: Path) -> None:
    put_back({}, tmp_path / "missing")


def test_what_a_topic_lacks_of_a_backup_is_named() -> None:
    saved = state_of([version("a", 1, 1, '"int"'), version("b", 1, 2, '"long"')])
    assert is_empty(state_of([encode(NOOP)]))
    assert not is_empty(saved)
    assert missing_from(saved, saved) == []
    assert missing_from(state_of([]), saved) == ["a", "b"]
    assert missing_from(state_of([version("c", 1, 1, '"int"'), version("c", 2, 2, '"bytes"')]), saved) == ["b"]


# ---- backups without a Kafka that answers --------------------------------------------


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A home without a Kafka, with a table."""
    home = tmp_path / "home"
    Home(home).prepare()
    Table(home / "master" / "web").commit(1, append(0, 10), ["a.parquet"])
    return load_settings(home=home)


def in_backup(settings: Settings, tmp_path: Path) -> tuple[bytes | None, list[str]]:
    """The records in a new backup, as they are restored; and its notes."""
    done = back_up(settings, tmp_path / "backups")
    home = tmp_path / f"restored-{done.manifest.number}"
    restored = restore(load_settings(home=home), tmp_path / "backups")
    path = restored_file(load_settings(home=home))
    assert any("schema registry" in each for each in restored.advice) == path.exists()
    return path.read_bytes() if path.exists() else None, done.notes


def test_home_that_never_had_a_registry_has_none_in_its_backup(settings: Settings, tmp_path: Path) -> None:
    assert in_backup(settings, tmp_path) == (None, [])


def test_restored_records_that_are_in_no_topic_yet_are_backed_up_again(settings: Settings, tmp_path: Path) -> None:
    path = restored_file(settings)
    path.parent.mkdir()
    path.write_bytes(to_lines(RECORDS))
    assert in_backup(settings, tmp_path) == (to_lines(RECORDS), [])


def test_records_of_the_backup_before_stay_while_kafka_does_not_run(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = Home(settings.home).kafka / "data" / "meta.properties"
    meta.parent.mkdir()
    meta.write_text("version=1\n")
    content, notes = in_backup(settings, tmp_path)
    assert (content, notes) == (
        None,
        ["The schemas of the registry are not in this backup: Kafka does not run. Make a backup while Tidemark runs."],
    )
    with monkeypatch.context() as patch:
        patch.setattr(backup_schemas, "_read", lambda _settings: backup_schemas._Read(RECORDS))
        assert in_backup(settings, tmp_path) == (to_lines(RECORDS), [])
    content, notes = in_backup(settings, tmp_path)
    assert content == to_lines(RECORDS)
    assert "those of the backup before: Kafka does not run" in notes[0]


def test_registry_that_is_off_is_not_backed_up(settings: Settings, tmp_path: Path) -> None:
    off = settings.model_copy(update={"registry_enabled": False, "kafka_bootstrap": "127.0.0.1:1"})
    assert in_backup(off, tmp_path) == (None, [])
