"""The log of a view's Delta table as plain files: when it is whole, and what other engines read from it."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from batch_layer.delta_commits import PROPERTIES, commit_files, make_log
from batch_layer.delta_log import damage_of_log, exposed_run, read_log
from hand_off.errors import BatchError
from hand_off.manifests import DataFile


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "_delta_log").mkdir()
    return tmp_path


def commit(table: Path, *versions: int, text: str | None = None) -> None:
    for version in versions:
        said = json.dumps({"commitInfo": {"tags": {"tidemark.run": str(version)}}}) if text is None else text
        (table / "_delta_log" / f"{version:020}.json").write_text(said)


def checkpoint(table: Path, name: str, text: bytes | None = None) -> None:
    path = table / "_delta_log" / name
    if text is None:
        pq.write_table(pa.table({"add": [1]}), path)
    else:
        path.write_bytes(text)


WHOLE = f"{5:020}.checkpoint.parquet"


def test_no_log_and_an_empty_one_hold_no_table(tmp_path: Path, table: Path) -> None:
    assert damage_of_log(tmp_path / "elsewhere") == "there is no log"
    assert damage_of_log(table) == "it has neither a commit nor a checkpoint"
    (table / "_delta_log" / f".{0:020}.json.crc").touch()
    (table / "_delta_log" / "_last_checkpoint").write_text("{}")
    assert damage_of_log(table) == "it has neither a commit nor a checkpoint"


def test_log_begins_with_version_0_or_with_a_checkpoint(table: Path) -> None:
    commit(table, 6, 7)
    assert damage_of_log(table) == "commit 0 is missing"
    checkpoint(table, WHOLE)
    assert damage_of_log(table) == "", "Delta removed what came before the checkpoint"
    commit(table, 2)
    assert damage_of_log(table) == "", "what is left of it does not matter"
    commit(table, 9)
    assert damage_of_log(table) == "commit 8 is missing"


def test_checkpoint_alone_is_a_table(table: Path) -> None:
    checkpoint(table, WHOLE)
    assert (damage_of_log(table), exposed_run(table)) == ("", None)


@pytest.mark.parametrize("text", ["", "\n", "{", "[5]", "5"])
def test_commit_that_is_empty_or_torn_is_damage(table: Path, text: str) -> None:
    commit(table, 0, 1)
    assert (damage_of_log(table), exposed_run(table)) == ("", 1)
    commit(table, 2, text=text)
    assert damage_of_log(table).startswith("commit 2 cannot be read (")


@pytest.mark.parametrize("text", [b"", b"PAR1", b"\0" * 100])
def test_checkpoint_that_is_torn_is_damage(table: Path, text: bytes) -> None:
    commit(table, *range(7))
    checkpoint(table, WHOLE, text)
    assert damage_of_log(table).startswith("checkpoint 5 cannot be read (")


def test_checkpoint_of_several_files_counts_when_all_are_there(table: Path) -> None:
    commit(table, 6)
    checkpoint(table, f"{5:020}.checkpoint.{1:010}.{2:010}.parquet")
    assert damage_of_log(table) == "commit 0 is missing"
    checkpoint(table, f"{5:020}.checkpoint.{2:010}.{2:010}.parquet")
    assert damage_of_log(table) == ""


# ---- commits without Spark -------------------------------------------------------

SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "bucket", "type": "timestamp", "nullable": False, "metadata": {}},
        {"name": "hits", "type": "long", "nullable": True, "metadata": {}},
    ],
}


def data_file(table: Path, name: str, day: str, hits: list[int]) -> DataFile:
    path = table / f"day={day}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    at = datetime.fromisoformat(f"{day}T05:00:00+00:00")
    columns = {"bucket": pa.array([at] * len(hits), pa.timestamp("us", "UTC")), "hits": pa.array(hits, pa.int64())}
    pq.write_table(pa.table(columns), path)
    add = {
        "path": str(path.relative_to(table)),
        "partitionValues": {"day": day},
        "size": path.stat().st_size,
        "modificationTime": 1,
        "dataChange": True,
        "stats": json.dumps({"numRecords": len(hits)}),
    }
    return DataFile(day, add["path"], len(hits), add["size"], json.dumps({"add": add}))


def read(table: Path) -> list[tuple[str, int]]:
    """What another engine finds, and what DuckDB makes of it."""
    rows = DeltaTable(str(table)).to_pyarrow_table()
    found = duckdb.sql("select cast(day as varchar), hits from rows order by all").fetchall()
    assert rows.schema.names == ["bucket", "hits", "day"]
    return found


def test_other_engines_find_the_files_of_the_run_that_was_committed(tmp_path: Path) -> None:
    table = tmp_path / "page_hits"
    first = [data_file(table, "a.parquet", "2026-01-01", [1, 2]), data_file(table, "b.parquet", "2026-01-02", [3])]
    make_log(table, SCHEMA, "there is no log")
    assert (damage_of_log(table), exposed_run(table), read(table)) == ("", None, [])
    assert commit_files(table, first, 4) is not None
    assert read(table) == [("2026-01-01", 1), ("2026-01-01", 2), ("2026-01-02", 3)]
    assert commit_files(table, first, 5) is None, "it holds them already"
    assert exposed_run(table) == 4
    second = [first[0], data_file(table, "c.parquet", "2026-01-02", [5, 6])]
    assert commit_files(table, second, 6) is not None
    assert read(table) == [("2026-01-01", 1), ("2026-01-01", 2), ("2026-01-02", 5), ("2026-01-02", 6)]
    assert (exposed_run(table), damage_of_log(table)) == (6, "")
    assert commit_files(table, [], 7) is not None
    assert read(table) == []


def test_commits_go_on_from_a_checkpoint_whose_commits_are_gone(tmp_path: Path) -> None:
    table = tmp_path / "page_hits"
    first = data_file(table, "a.parquet", "2026-01-01", [1])
    make_log(table, SCHEMA, "there is no log")
    commit_files(table, [first], 1)
    DeltaTable(str(table)).create_checkpoint()
    for version in (0, 1):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    known = read_log(table)
    assert (known.version, known.checkpoint, [*known.files]) == (1, 1, [first.path])
    assert json.loads(known.metadata["schemaString"])["fields"][-1]["name"] == "day"
    assert commit_files(table, [first], 2) is None
    second = data_file(table, "b.parquet", "2026-01-03", [7])
    commit_files(table, [second], 3)
    assert (read(table), exposed_run(table)) == ([("2026-01-03", 7)], 3)


def test_properties_of_an_older_table_are_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "page_hits"
    with monkeypatch.context() as older:
        older.setattr("batch_layer.delta_commits.PROPERTIES", {"delta.checkpointInterval": "20", "mine": "stays"})
        make_log(table, SCHEMA, "there is no log")
    before = read_log(table).metadata
    assert commit_files(table, [], 1) is not None
    after = read_log(table).metadata
    assert after["configuration"] == {**PROPERTIES, "mine": "stays"}
    assert {**after, "configuration": 0} == {**before, "configuration": 0}, "it is the same table"
    assert DeltaTable(str(table)).metadata().configuration == after["configuration"]
    assert commit_files(table, [], 2) is None


def test_a_commit_of_somebody_else_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "page_hits"
    make_log(table, SCHEMA, "there is no log")
    stale = read_log(table)
    commit(table, 1, text='{"commitInfo":{"operation":"WRITE"}}')
    monkeypatch.setattr("batch_layer.delta_commits.read_log", lambda _: stale)
    with pytest.raises(BatchError, match="has a version 1 that Tidemark did not write"):
        commit_files(table, [data_file(table, "a.parquet", "2026-01-01", [1])], 1)
    assert (table / "_delta_log" / f"{1:020}.json").read_text() == '{"commitInfo":{"operation":"WRITE"}}'


def test_a_log_that_cannot_be_read_makes_room_for_another(tmp_path: Path) -> None:
    table = tmp_path / "page_hits"
    make_log(table, SCHEMA, "there is no log")
    commit(table, 1, text="{")
    make_log(table, SCHEMA, damage_of_log(table))
    assert (damage_of_log(table), read(table)) == ("", [])
    assert (table / "_delta_log.damaged" / f"{1:020}.json").read_text() == "{"
    assert not table.with_name("page_hits.making").exists()
