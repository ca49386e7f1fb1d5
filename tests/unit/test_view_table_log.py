"""The log of a view's Delta table as plain files: when it is whole."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batch_layer.delta_log import damage_of_log, exposed_run


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
