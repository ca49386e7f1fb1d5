"""A source whose declared fields are not those of its master table is named, with the fields and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.settings import load_settings
from master_dataset.table.fields import SourceChanged, check_fields, stored_fields
from master_dataset.table.paths import table_path
from master_dataset.table.readings import changed_sources
from views.source import Source

FIELDS = (
    "event_id string, event_time timestamp, n int, price decimal(10,2), tags array<string>, of map<string,bigint>, "
)
NESTED = "at struct<place:string,deep:struct<x:double>>, each array<struct<y:smallint>>"
SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "partition", "type": "integer"},
        {"name": "event", "type": {"type": "struct", "fields": [
            {"name": "event_id", "type": "string"},
            {"name": "event_time", "type": "timestamp"},
            {"name": "n", "type": "integer"},
            {"name": "price", "type": "decimal(10,2)"},
            {"name": "tags", "type": {"type": "array", "elementType": "string"}},
            {"name": "of", "type": {"type": "map", "keyType": "string", "valueType": "long"}},
            {"name": "at", "type": {"type": "struct", "fields": [
                {"name": "place", "type": "string"},
                {"name": "deep", "type": {"type": "struct", "fields": [{"name": "x", "type": "double"}]}},
            ]}},
            {"name": "each", "type": {"type": "array", "elementType": {
                "type": "struct", "fields": [{"name": "y", "type": "short"}]}}},
        ]}},
    ],
}  # fmt: skip


def source(fields: str = FIELDS + NESTED) -> Source:
    return Source("shop", fields=fields)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with the fields of `source()`, said by its first commit."""
    path = table_path(load_settings(home=tmp_path), "shop")
    (path / "_delta_log").mkdir(parents=True)
    metadata = json.dumps({"metaData": {"schemaString": json.dumps(SCHEMA)}})
    (path / "_delta_log" / f"{0:020}.json").write_text(f'{{"commitInfo": {{}}}}\n{metadata}\n')
    (path / "_delta_log" / f"{1:020}.json").write_text('{"commitInfo": {}}\n')
    return path


def test_source_as_it_was_and_a_source_without_a_table_are_in_order(table: Path, tmp_path: Path) -> None:
    check_fields(table, source())
    check_fields(tmp_path / "none", source())
    assert changed_sources(load_settings(home=tmp_path), [source()]) == {}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("n int", "n bigint", "'n' is int in the table and bigint in the declaration"),
        ("price decimal(10,2), ", "", "'price' (decimal(10,2)) is no longer declared"),
        ("n int", "n int, coupon string", "'coupon' (string) is not in the table"),
        ("x:double", "x:int", "'at.deep.x' is double in the table and int in the declaration"),
        ("y:smallint", "y:int", "'each' is array<struct<`y`:smallint>> in the table and array<struct<`y`:int>>"),
        ("n int, price decimal(10,2)", "price decimal(10,2), n int", "they stand in another order"),
    ],
)
def test_change_is_named_in_a_few_words(table: Path, before: str, after: str, said: str) -> None:
    with pytest.raises(SourceChanged) as found:
        check_fields(table, source((FIELDS + NESTED).replace(before, after)))
    text = str(found.value)
    assert said in text
    assert text.startswith("Source 'shop' was changed: its fields are not those of its master table. ")
    assert "Declare it with version=2, or undo the change." in text
    assert len(text) < 400


RULES = {"n": {"required": True, "default": 0}, "at.place": {"aliases": ["spot"]}}


@pytest.mark.parametrize(
    ("fields", "aliases", "stored", "said"),
    [
        ("n int not null", {}, {}, "'n' has no NOT NULL in the table and NOT NULL in the declaration"),
        ("n int default 5", {}, {}, "'n' has no DEFAULT in the table and the DEFAULT 5 in the declaration"),
        ("n int", {"n": ("m",)}, {}, "'n' has no aliases in the table and the aliases ['m'] in the declaration"),
        ("n int not null default 0", {"at.place": ("spot",)}, RULES, ""),
        (
            "n int not null default 1",
            {"at.place": ("spot",)},
            RULES,
            "'n' has the DEFAULT 0 in the table and the",
        ),
        ("n int", {}, RULES, "'at.place' has the aliases ['spot'] in the table and no aliases in the declaration"),
    ],
)
def test_how_a_field_is_read_cannot_change_either(
    table: Path, fields: str, aliases: dict[str, tuple[str, ...]], stored: dict[str, Any], said: str
) -> None:
    if stored:
        metadata = {"schemaString": json.dumps(SCHEMA), "configuration": {"tidemark.fields": json.dumps(stored)}}
        (table / "_delta_log" / f"{2:020}.json").write_text(json.dumps({"metaData": metadata}))
    declared = Source("shop", fields=(FIELDS + NESTED).replace("n int", fields), aliases=aliases)
    if said:
        with pytest.raises(SourceChanged) as found:
            check_fields(table, declared)
        assert said in str(found.value)
    else:
        check_fields(table, declared)


def test_many_changes_are_not_all_listed(table: Path, tmp_path: Path) -> None:
    other = ", ".join(f"f{number} int" for number in range(100))
    (text,) = changed_sources(
        load_settings(home=tmp_path), [source(f"event_id string, event_time timestamp, {other}")]
    ).values()
    assert "102 more" in text
    assert len(text) < 600


def test_fields_are_found_in_a_checkpoint_when_the_first_commit_is_gone(table: Path) -> None:
    log = table / "_delta_log"
    (log / f"{0:020}.json").unlink()
    assert stored_fields(table) is None
    rules = [("tidemark.fields", json.dumps({"n": {"required": True}}))]
    rows = [None, {"id": "x", "schemaString": json.dumps(SCHEMA), "configuration": rules}]
    kind = pa.struct(
        [("id", pa.string()), ("schemaString", pa.string()), ("configuration", pa.map_(pa.string(), pa.string()))]
    )
    pq.write_table(pa.table({"metaData": pa.array(rows, kind)}), log / f"{1:020}.checkpoint.parquet")
    (log / f"{2:020}.checkpoint.parquet").write_bytes(b"torn")
    check_fields(table, source((FIELDS + NESTED).replace("n int", "n int not null")))
    for other in (source(), source(FIELDS + "x int")):
        with pytest.raises(SourceChanged):
            check_fields(table, other)
