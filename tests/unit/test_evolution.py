"""Which changes of a source's reading are allowed, and what is recorded of it beside the master table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hand_off import definitions
from hand_off.batch_folder import BatchFolder
from hand_off.errors import BatchError
from infra.settings import load_settings
from master_dataset.collector.validators import Validators
from master_dataset.errors import InvalidEvent
from master_dataset.table import readings
from master_dataset.table.fields import SourceChanged, check_fields
from master_dataset.table.paths import table_path
from master_dataset.table.readings import adopt, changed_sources, check_reading, first_reading, reading_in_force
from tests.conftest import Killed, dying_at
from views.aggregates import Count
from views.evolution import evolution
from views.source import Source
from views.view import View

ROLES = "event_id string, event_time timestamp"


def declare(fields: str, **more: Any) -> Source:
    return Source("shop", fields=f"{ROLES}, {fields}", **more)


@pytest.mark.parametrize(
    ("before", "after", "aliases", "change"),
    [
        ("a int", "a int, b string", {}, "'b' (string) is new"),
        ("a int", "a int, b string not null default '-'", {}, "'b' (string) is new"),
        ("a int, b string", "a int", {}, "'b' is no longer declared"),
        ("a tinyint", "a bigint", {}, "'a' was tinyint and is bigint"),
        ("a int", "a double", {}, "'a' was int and is double"),
        ("a float", "a double", {}, "'a' was float and is double"),
        ("a decimal(5,2)", "a decimal(8,3)", {}, "'a' was decimal(5,2) and is decimal(8,3)"),
        ("a array<int>", "a array<bigint>", {}, "'a' was array<int> and is array<bigint>"),
        ("a map<string, struct<x: int>>", "a map<string, struct<x: bigint, y: int>>", {}, "'a' was map<string,"),
        ("a struct<x: int>", "a struct<x: bigint, y: int>", {}, "'a.x' was int and is bigint"),
        ("a int not null", "a int", {}, "'a' is no longer NOT NULL"),
        ("a int", "a int default 3", {}, "'a' has the DEFAULT 3, and had no DEFAULT"),
        ("a int", "b int", {"b": ("a",)}, "'b' is the new name of 'a'"),
        ("a int", "a int", {"a": ("aa",)}, "'a' has the aliases ['aa']"),
        ("a int, b int", "b int, a int", {}, None),
        ("a int default 1", "a int", {}, "'a' has no DEFAULT, and had the DEFAULT 1"),
        ("a int not null default 1", "a int not null default 2", {}, "'a' has the DEFAULT 2"),
        ("a int, b int", "a bigint", {"a": ("b",)}, "'a' has the aliases ['b']"),
    ],
)
def test_change_that_loses_nothing_is_allowed(
    before: str, after: str, aliases: dict[str, tuple[str, ...]], change: str | None
) -> None:
    found = evolution(declare(before), declare(after, aliases=aliases))
    assert found.refused == ()
    assert change is None or any(each.startswith(change) for each in found.changes), found.changes


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("a bigint", "a int", "'a' was bigint and is int, which does not hold every value of it"),
        ("a bigint", "a double", "'a' was bigint and is double, which does not hold"),
        ("a int", "a string", "'a' was int and is string, which does not hold"),
        ("a decimal(5,2)", "a decimal(6,3)", None),
        ("a decimal(5,2)", "a decimal(5,3)", "'a' was decimal(5,2) and is decimal(5,3), which does not hold"),
        ("a decimal(5,2)", "a double", "'a' was decimal(5,2) and is double"),
        ("a array<bigint>", "a array<int>", "'a' was array<bigint> and is array<int>"),
        ("a array<struct<x: int>>", "a array<struct<y: int>>", "'a' was array<struct<`x`:int>> and is"),
        ("a struct<x: int>", "a map<string, int>", "'a' was struct<`x`:int> and is map<string,int>"),
        ("a struct<x: double>", "a struct<x: float>", "'a.x' was double and is float"),
        ("a int", "a int, b int not null", "'b' is new and NOT NULL: all records so far would be invalid"),
        ("a int", "a int not null", "'a' is NOT NULL now"),
        ("a int not null default 1", "a int not null", "'a' is NOT NULL and has no DEFAULT any more: records"),
        ("a int", "A int", "'A' differs from 'a' by case only"),
    ],
)
def test_change_that_would_lose_something_is_refused_with_field_and_reason(
    before: str, after: str, reason: str | None
) -> None:
    refused = evolution(declare(before), declare(after)).refused
    assert [each[: len(reason)] for each in refused] == [reason] if reason else refused == ()


def test_alias_that_records_need_stays() -> None:
    old, new = (declare("a int not null", aliases=aliases) for aliases in ({"a": ("b", "c")}, {"a": ("c",)}))
    (refused,) = evolution(old, new).refused
    assert refused.startswith("'a' is NOT NULL, and its aliases ['b'] are gone")
    optional, less = (declare("a int", aliases=each.aliases) for each in (old, new))
    assert evolution(optional, less).refused == ()
    assert evolution(old, declare("b int not null", aliases={"b": ("a", "c")})).refused == (), "renamed"


@pytest.mark.parametrize(
    ("earlier", "old", "new", "aliases", "reason"),
    [
        ("b string", "a int", "a int, b int", {}, "'b' was string in version 1 and is int, which does not hold"),
        ("b string", "a int", "a int", {"a": ("b",)}, "'b' was string in version 1 and is int, which does not hold"),
        ("b string", "b string, a int", "a int", {"a": ("b",)}, "'b' was string in version 1 and is int"),
        ("s struct<b: bigint>", "s struct<a: int>", "s struct<a: int, b: int>", {}, "'s.b' was bigint in version 1"),
        ("s struct<b: bigint>", "a int", "s int", {}, "'s' was struct<`b`:bigint> in version 1 and is int"),
        ("b string", "a int", "B string", {}, "'B' differs from 'b' in version 1 by case only"),
        ("b string", "a int", "b string not null default '-'", {}, "'b' is NOT NULL now, and was not in version 1"),
        ("b int", "a int", "a int, b bigint", {}, ""),
        ("s struct<b: int, c: int>", "a int", "s struct<b: bigint>", {}, ""),
        ("b int not null", "a int", "a int, b int not null default 0", {}, ""),
        ("b int", "a int", "a bigint", {"a": ("b",)}, ""),
    ],
)
def test_name_that_comes_back_is_compared_with_the_versions_that_had_it(
    earlier: str, old: str, new: str, aliases: dict[str, tuple[str, ...]], reason: str
) -> None:
    refused = evolution(declare(old, version=2), declare(new, aliases=aliases, version=3), [declare(earlier)]).refused
    assert [each[: len(reason)] for each in refused[:1]] == ([reason] if reason else [])


def test_another_id_or_time_is_refused() -> None:
    other = Source("shop", fields=f"{ROLES}, key string, at timestamp", id_field="key", time_field="at")
    found = evolution(declare("key string, at timestamp"), other)
    assert [each.partition(":")[0] for each in found.refused] == [
        "id_field was 'event_id' and is 'key'",
        "time_field was 'event_time' and is 'at'",
    ]


# ---- beside the table ----------------------------------------------------------


ONE, TWO = declare("a int"), declare("a bigint, b string", version=2)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with the fields of version 1, as its first commit says, older than readings."""
    path = table_path(load_settings(home=tmp_path), "shop")
    (path / "_delta_log").mkdir(parents=True)
    fields = [
        {"name": name, "type": kind}
        for name, kind in (("event_id", "string"), ("event_time", "timestamp"), ("a", "integer"))
    ]
    schema = json.dumps({"fields": [{"name": "event", "type": {"type": "struct", "fields": fields}}]})
    (path / "_delta_log" / f"{0:020}.json").write_text(json.dumps({"metaData": {"schemaString": schema}}) + "\n")
    return path


def test_reading_is_adopted_once_and_the_first_one_stays(table: Path) -> None:
    assert check_reading(table, ONE) == []
    assert check_reading(table, TWO) == ["'a' was int and is bigint", "'b' (string) is new"]
    assert first_reading(table, TWO).schema == reading_in_force(table, TWO).schema == ONE.schema
    assert not (table.with_name("shop.proofs") / "readings").exists(), "nothing is recorded by looking"
    adopt(table, TWO)
    adopt(table, TWO)
    assert [first_reading(table, TWO).schema, reading_in_force(table, ONE)] == [ONE.schema, TWO]
    assert not readings.is_of_first_reading(table, TWO)
    assert readings.is_of_first_reading(table, ONE)
    assert check_reading(table, TWO) == []


def test_version_follows_the_last_one_and_says_what_it_said(table: Path, tmp_path: Path) -> None:
    adopt(table, ONE)
    for source, message in (
        (replace(TWO, version=3), r"its version is 3, and that of its master table 1\. Declare it with version=2"),
        (replace(TWO, version=1), "'b' .* is new.*Declare it with version=2"),
        (declare("a smallint", version=2), "does not hold every value of it. Undo the change, or declare a source"),
    ):
        with pytest.raises(SourceChanged, match=message):
            adopt(table, source)
        assert reading_in_force(table, source).version == 1
    adopt(table, TWO)
    for source, message in (
        (ONE, "its version is 1, and that of its master table 2.*Declare it with version=3"),
        (declare("a bigint", version=2), "'b' is no longer declared.*Declare it with version=3"),
    ):
        with pytest.raises(SourceChanged, match=message):
            adopt(table, source)
    assert list(changed_sources(load_settings(home=tmp_path), [ONE])) == ["shop"]
    assert changed_sources(load_settings(home=tmp_path), [TWO]) == {}


def test_source_without_a_table_begins_with_any_version(tmp_path: Path) -> None:
    assert adopt(tmp_path / "none", TWO) == TWO
    assert not (tmp_path / "none.proofs").exists()


@pytest.mark.parametrize("step", ["readings.before_adopt", "readings.after_adopt"])
def test_adoption_that_is_killed_is_repeated(table: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(readings, "reach", dying_at(step))
        with pytest.raises(Killed):
            adopt(table, TWO)
    is_adopted = step == "readings.after_adopt"
    assert reading_in_force(table, TWO).version == (2 if is_adopted else 1)
    adopt(table, TWO)
    assert [first_reading(table, TWO).version, reading_in_force(table, TWO)] == [1, TWO]


def test_version_is_compared_with_all_that_were_adopted(table: Path) -> None:
    adopt(table, declare("b string", version=2))
    adopt(table, declare("c string", version=3))
    for fields, refused in (("a smallint", "'a' was int in version 1"), ("b int", "'b' was string in version 2")):
        with pytest.raises(SourceChanged, match=refused):
            adopt(table, declare(fields, version=4))
    adopt(table, declare("a bigint, b string", version=4))


def test_table_that_is_older_than_readings_may_go_on_with_version_2(table: Path) -> None:
    """As the archiver opens it, and a rebase: what it has is compared first."""
    check_fields(table, first_reading(table, TWO))
    assert not readings.is_of_first_reading(table, TWO)
    adopt(table, TWO)
    check_fields(table, first_reading(table, TWO))
    assert first_reading(table, TWO).version == 1


@pytest.mark.parametrize(
    ("now", "followed"),
    [
        (declare("user string", aliases={"user": ("a", "uid")}, key_field="user", version=2), "a"),
        (declare("a int, b string", key_field="b", version=2), ""),
        (declare("a int, b string", key_field="a", version=2), "a"),
        (declare("b string", version=2), ""),
        (declare("a int", key_field="event_id", compacted=True, version=2), "event_id"),
    ],
)
def test_key_field_is_that_of_each_reading(table: Path, now: Source, followed: str) -> None:
    """Renamed, new, kept and no longer declared: the readings on record have other fields than the declaration."""
    adopt(table, declare("a int", key_field="a"))
    assert first_reading(table, now).key_field == reading_in_force(table, now).key_field == followed
    if "user" in now.fields:
        now = replace(now, fields=now.fields.replace("user string", "user int"))
    adopt(table, now)
    assert reading_in_force(table, now) == now
    assert [each.key_field for each in (first_reading(table, now), reading_in_force(table, now))] == [
        followed, now.key_field,
    ]  # fmt: skip
    running = declare("a int", key_field="a")
    expected = next((each.name for each in now.schema if "a" in each.names), "")
    assert reading_in_force(table, running).key_field == expected


def test_damaged_reading_is_named(table: Path) -> None:
    adopt(table, TWO)
    (path,) = (table.with_name("shop.proofs") / "readings").glob("*2")
    path.write_bytes(b"{")
    with pytest.raises(readings.ReadingDamaged, match=r"readings/00000002.*Restore it from a backup"):
        reading_in_force(table, TWO)


def test_collector_follows_the_reading_in_force_and_keeps_it_where_that_is_damaged(table: Path, tmp_path: Path) -> None:
    validators = Validators(load_settings(home=tmp_path), [ONE])
    with pytest.raises(InvalidEvent):
        validators["shop"]({"a": 2**40})
    adopt(table, TWO)
    validators.look()
    assert validators.source("shop").reading == TWO.reading
    validators["shop"]({"a": 2**40})
    with pytest.raises(InvalidEvent):
        validators["shop"]({"b": 5})
    (path,) = (table.with_name("shop.proofs") / "readings").glob("*2")
    path.write_bytes(b"{")
    validators.look()
    validators["shop"]({"a": 2**40})


# ---- views over versions ---------------------------------------------------------


def test_view_of_another_version_is_another_one_and_comes_back_with_its_fields(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path / "shop")
    old, new = (View("v", source, {"events": Count(where="a > 1")}) for source in (ONE, TWO))
    assert old.hash == View("v", replace(ONE, doc="x"), {"events": Count(where="a > 1")}).hash
    assert len({old.hash, new.hash, View("v", replace(TWO, version=3), {"events": Count(where="a > 1")}).hash}) == 3
    for view in (old, new):
        definitions.keep(folder, view)
    assert [definitions.version_of(folder, each) for each in (old.hash, new.hash, "0" * 64)] == [1, 2, None]
    for now in (ONE, TWO, declare("other string", version=7)):
        assert definitions.restore(folder, old.hash, now) == old
        assert definitions.restore(folder, new.hash, now) == new
    assert definitions.restore(folder, new.hash, declare("other string", version=2)) == new, "by its own reading"


WRITTEN = "s struct<x: int default 1, y: string>, a bigint not null, tags array<struct<p: int, q: int>>"


@pytest.mark.parametrize(
    "fields",
    [
        WRITTEN.replace(", ", ",\n  "),
        WRITTEN.replace("bigint", "`BIGINT`".strip("`")).replace("not null", "NOT NULL"),
        "a bigint not null, tags array<struct<p:int,q:int>>, s struct<`y` string, x int default 1>",
        WRITTEN.replace("a bigint not null", "a bigint not null comment 'how many'"),
    ],
)
def test_writing_a_version_otherwise_changes_no_view(tmp_path: Path, fields: str) -> None:
    source, other = (declare(each, version=2) for each in (WRITTEN, fields))
    assert source.reading != other.reading
    view, same = (View("v", each, {"events": Count(where="a > 1")}) for each in (source, other))
    assert view.hash == same.hash
    folder = BatchFolder(tmp_path / "shop")
    definitions.keep(folder, view)
    assert definitions.restore(folder, view.hash, other) == same


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        (WRITTEN.replace("default 1", "default 2"), {}),
        (WRITTEN.replace(" not null", ""), {}),
        (WRITTEN.replace("x: int", "x: bigint"), {}),
        (WRITTEN.replace("p: int, q: int", "q: int, p: int"), {}),
        (WRITTEN, {"aliases": {"s.y": ("z",)}}),
    ],
)
def test_what_a_version_reads_is_part_of_every_view(fields: str, more: dict[str, Any]) -> None:
    hashes = {
        View("v", each, {"events": Count(where="a > 1")}).hash
        for each in (declare(WRITTEN, version=2), declare(fields, version=2, **more))
    }
    assert len(hashes) == 2


def test_definition_that_is_older_than_readings_is_restored_by_the_columns(table: Path, tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path / "shop")
    view = View("v", ONE, {"events": Count(where="a > 1")})
    definitions.keep(folder, view)
    (path,) = folder.definitions.glob("*.declared")
    declared = json.loads(path.read_text())
    del declared["source"]
    path.write_text(json.dumps(declared))
    for adopted in (ONE, TWO):
        restored = definitions.restore(folder, view.hash, TWO, table)
        assert (restored.hash, restored.source.schema, restored.source.version) == (view.hash, ONE.schema, 1)
        adopt(table, adopted)
    readings_folder = table.with_name("shop.proofs") / "readings"
    (readings_folder / "00000001").write_bytes(b"{")
    with pytest.raises(BatchError, match="Restore it from a backup"):
        definitions.restore(folder, view.hash, TWO, table)


def test_declaration_that_an_older_version_kept_gets_its_reading(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path / "shop")
    view = View("v", ONE, {"events": Count()})
    definitions.keep(folder, view)
    (path,) = folder.definitions.glob("*.declared")
    path.unlink()
    folder.store.put_if_absent(
        f"definitions/{view.hash}.declared",
        json.dumps({"name": "v", "keys": {}, "grain": "1h", "where": None, "answers": {
            "events": {"is": "Count", "of": None, "where": None}}}).encode(),
    )  # fmt: skip
    definitions.keep(folder, view)
    assert definitions.restore(folder, view.hash, TWO).source == ONE
