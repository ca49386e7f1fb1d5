"""`tidemark master read` and `replay` on tables written by hand: never fewer records than there were without a word."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from master_dataset.table import coverage
from master_dataset.table.ledger import append_to_ledger
from master_dataset.table.proofs import Kind, Proof
from tidemark import cli

SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in [
            ("partition", "integer"), ("offset", "long"), ("timestamp", "timestamp"), ("event_time", "timestamp"),
            ("event_id", "string"), ("invalid", "string"), ("topic", "string"), ("key", "binary"), ("value", "binary"),
        ]
    ],
}  # fmt: skip
COLUMNS = pa.schema(
    [
        ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")),
        ("event_time", pa.timestamp("us", "UTC")), ("event_id", pa.string()), ("invalid", pa.string()),
        ("topic", pa.string()), ("key", pa.binary()), ("value", pa.binary()),
    ]
)  # fmt: skip


class Said(NamedTuple):
    out: str
    err: str
    code: int


Master = Callable[..., Said]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The table of source `shop`: two commits of one record."""
    path = tmp_path / "master" / "shop"
    (path / "_delta_log").mkdir(parents=True)
    write_commit(path, 0, {"commitInfo": {}}, {"metaData": {"schemaString": json.dumps(SCHEMA)}})
    for version in (1, 2):
        file = path / f"part-{version}.parquet"
        row = {"partition": 0, "offset": version - 1, "topic": "shop", "value": b"{}"}
        pq.write_table(pa.Table.from_pylist([row], COLUMNS), file)
        proof = Proof(Kind.APPEND, "shop", "id", {0: version - 1}, {0: version}, rows=1)
        add = {"path": file.name, "size": file.stat().st_size, "stats": '{"numRecords":1}'}
        write_commit(path, version, {"commitInfo": {"userMetadata": proof.to_json()}}, {"add": add})
        append_to_ledger(path, [(version, proof)])
    return path


def write_commit(table: Path, version: int, *actions: dict[str, object]) -> None:
    (table / "_delta_log" / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)))


@pytest.fixture
def master(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Master:
    """Run a `tidemark master` command on a home whose one source is `shop`."""
    (tmp_path / "views").mkdir()
    declared = (
        'from views.source import Source\nshop = Source("shop", fields="event_id string, event_time timestamp")\n'
    )
    (tmp_path / "views" / "mine.py").write_text(declared)
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TIDEMARK_VIEWS_DIR", str(tmp_path / "views"))
    monkeypatch.setenv("TIDEMARK_MASTER_DIR", str(table.parent))

    def run(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["tidemark", "master", *arguments])
        try:
            cli.main()
            code: int | str | None = 0
        except SystemExit as ended:
            code = ended.code
        out, err = capsys.readouterr()
        return Said(out, err, int(code or 0))

    return run


def read_into(master: Master, file: Path, *options: str) -> Said:
    return master("read", "shop", "--format", "parquet", "--out", str(file), *options)


def test_a_sound_table_is_read(master: Master, tmp_path: Path) -> None:
    said = read_into(master, tmp_path / "records.parquet")
    assert (said.err, said.code) == ("2 records\n", 0)
    assert pq.read_table(tmp_path / "records.parquet").num_rows == 2


def test_where_there_is_no_table_nothing_is_held(tmp_path: Path) -> None:
    assert coverage.of(tmp_path / "nowhere") == coverage.Coverage()
    assert list(tmp_path.iterdir()) == []


def test_retain_asks_before_it_removes(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    said = master("retain", "shop", "--days", "10")
    assert (said.code, "give --yes" in said.err) == (2, True), "nobody can be asked"
    terminal = io.StringIO("n\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    said = master("retain", "shop", "--days", "10")
    assert (said.code, "older than 10 days? They cannot be brought back." in said.err) == (1, True)
    assert coverage.of(Path(os.environ["TIDEMARK_MASTER_DIR"]) / "shop").removed.cut == {}


def cut_to_nothing(table: Path) -> None:
    (table / "_delta_log" / f"{2:020}.json").write_bytes(b"")


@pytest.mark.parametrize("harm", [cut_to_nothing, shutil.rmtree])
@pytest.mark.parametrize("command", [("read", "shop"), ("replay", "shop", "elsewhere")])
def test_a_damaged_table_is_refused_with_the_remedy(
    master: Master, table: Path, harm: Callable[[Path], None], command: tuple[str, ...]
) -> None:
    harm(table)
    said = master(*command)
    assert (said.out, said.code) == ("", 1)
    assert "tidemark master repair shop" in said.err


@pytest.mark.parametrize("command", [("read", "shop"), ("replay", "shop", "elsewhere")])
def test_a_source_without_a_table_differs_from_one_without_records(
    master: Master, table: Path, command: tuple[str, ...]
) -> None:
    shutil.rmtree(table.parent)
    said = master(*command)
    assert (said.out, said.code) == ("", 1)
    assert "Source 'shop' has no master table" in said.err


def test_nothing_found_is_an_empty_file_with_the_columns(master: Master, table: Path, tmp_path: Path) -> None:
    file = tmp_path / "records.parquet"
    file.write_bytes(b"what an earlier run wrote")
    said = read_into(master, file, "--from", "0:2")
    assert (said.err, said.code) == ("0 records\n", 0)
    found = pq.read_table(file)
    assert (found.num_rows, found.schema.names, found.schema.types) == (0, COLUMNS.names, COLUMNS.types)
