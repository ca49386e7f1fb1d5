"""Sources: what may be declared, and what is refused with the source, the place and a fix."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from views.catalog.web import web
from views.declarations import load_declarations
from views.errors import DeclarationError, SourceError
from views.source import Source

ROLES = "event_id string, event_time timestamp"


def declare(more_fields: str = "", **settings: Any) -> Source:
    """The source `shop` with the two fields that every source has, and these."""
    return Source(**{"name": "shop", "fields": ROLES + (f", {more_fields}" if more_fields else ""), **settings})


# ---- one source --------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "types"),
    [
        ("", []),
        ("a string, b boolean", ["string", "boolean"]),
        ("a tinyint, b smallint, c int, d bigint", ["tinyint", "smallint", "int", "bigint"]),
        ("a INTEGER, b long", ["int", "bigint"]),
        ("a float, b double", ["float", "double"]),
        ("a date, b timestamp", ["date", "timestamp"]),
        ("a decimal", ["decimal(10,0)"]),
        ("a decimal(7)", ["decimal(7,0)"]),
        ("a decimal(1,0), b decimal(38,38)", ["decimal(1,0)", "decimal(38,38)"]),
        ("a array<array<int>>", ["array<array<int>>"]),
        ("a map<string, array<double>>", ["map<string,array<double>>"]),
        ("a struct<x: int, y struct<x: string>>", ["struct<`x`:int,`y`:struct<`x`:string>>"]),
        ("a int comment 'pages, all of them', b struct<x: int comment 'k'>", ["int", "struct<`x`:int>"]),
        ("`select` int, `größe` int, `a-b` int, _a int", ["int", "int", "int", "int"]),
    ],
)
def test_fields_of_these_types_can_be_declared(fields: str, types: list[str]) -> None:
    assert [field.type.ddl() for field in declare(fields).schema][2:] == types


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"topic": "Shop.events-1"},
        {"partitions": 1},
        {"partitions": 10_000},
        {"retention_hours": None},
        {"retention_hours": 0.5},
        {"retention_hours": 1},
        {"retention_bytes": None},
        {"retention_bytes": 1},
        {"compacted": True},
        {"doc": "What is sold."},
        {"id_field": "event_id", "time_field": "event_time"},
    ],
)
def test_topics_with_these_settings_can_be_declared(settings: dict[str, Any]) -> None:
    source = declare(**settings)
    assert (source.topic, source.dead_topic) == (settings.get("topic", "shop"), "shop.dead")


@pytest.mark.parametrize(
    ("fields", "place", "fix"),
    [
        # decimals that Spark does not have
        ("a decimal(50,2)", "a: 'decimal(50, 2)'", "1 to 38"),
        ("a decimal(39)", "a: 'decimal(39)'", "1 to 38"),
        ("a decimal(0,0)", "a: 'decimal(0, 0)'", "1 to 38"),
        ("a decimal(5,6)", "a: 'decimal(5, 6)'", "at most p"),
        ("a decimal(x)", "a: 'decimal(x)'", "decimal(p,s)"),
        ("a decimal(2.5)", "a: 'decimal(2.5)'", "decimal(p,s)"),
        ("a decimal(5,2,1)", "a: 'decimal(5, 2, 1)'", "decimal(p,s)"),
        ("p struct<x: array<decimal(50,2)>>", "p.x: 'decimal(50, 2)'", "1 to 38"),
        # names twice
        ("a int, A int", "['a'] are declared more than once", "Rename"),
        ("event_id string", "['event_id'] are declared more than once", "Rename"),
        ("s struct<a: int, A: int>", "s: ['a'] are declared more than once", "Rename"),
        ("s array<struct<t: struct<b: int, b: int>>>", "s.t: ['b'] are declared more than once", "Rename"),
        # what would be promised and not kept
        ("a int not null", "a: 'NOT NULL'", "Write 'a int'"),
        ("s struct<x: int not null>", "s.x: 'NOT NULL'", "Write 'x int'"),
        ("a int null", "a: 'NULL'", "Write 'a int'"),
        ("a int default 3", "a: 'DEFAULT 3'", "Write 'a int'"),
        ("a string collate utf8_lcase", "a: 'COLLATE utf8_lcase'", "Write 'a string'"),
        ("a varchar(5)", "a: a string has no length", "Write 'string'"),
        # names that break the paths to a field, or that Delta does not take
        ("`a.b` int", "'a.b'", "Rename"),
        ("`a``b` int", "'a`b'", "Rename"),
        ("`a b` int", "'a b'", "Rename"),
        ("`` int", "''", "Rename"),
        ("s struct<`x.y`: int>", "'x.y' in s", "Rename"),
        ("_corrupt string", "'_corrupt'", "Rename"),
        # types that JSON or Spark's reader cannot give
        ("a char(3)", "a: the type 'CHAR(3)' is not supported", "There are: "),
        ("a binary", "a: the type 'BINARY' is not supported", "There are: "),
        ("a map<int, string>", "a: 'MAP<INT, STRING>'", "map<string, …>"),
        ("a struct<int>", "a: the type 'STRUCT<INT>'", "There are: "),
        # what is no list of fields
        ("a", "is not Spark DDL", "'url string, ms int'"),
        ("a b int", "is not Spark DDL", "'url string, ms int'"),
        ("a int) partitioned by (a", "is not Spark DDL", "'url string, ms int'"),
        ("a int); drop table t; create table u (b int", "is not Spark DDL", "'url string, ms int'"),
    ],
)
def test_fields_that_cannot_work_are_refused_with_place_and_fix(fields: str, place: str, fix: str) -> None:
    with pytest.raises(SourceError) as refused:
        declare(fields)
    said = str(refused.value)
    assert said.startswith("Source 'shop': fields: ")
    assert place in said
    assert fix in said


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "Shop"}, "Source 'Shop': a name consists of lower-case letters, digits and underscores"),
        ({"name": ""}, "Source '': a name consists of lower-case letters"),
        ({"name": 5}, "Source 5: name is 5; it should be a string."),
        ({"name": None}, "Source None: name is None; it should be a string."),
        ({"fields": ["event_id string"]}, "Source 'shop': fields is ['event_id string']; it should be a string."),
        ({"fields": None}, "Source 'shop': fields is None; it should be a string."),
        ({"fields": ""}, "Source 'shop': fields: '' is not Spark DDL like 'url string, ms int'."),
        ({"topic": 7}, "Source 'shop': topic is 7; it should be a string."),
        ({"topic": "a b"}, "Source 'shop': 'a b' is not a topic name; Kafka allows letters, digits, '.', '_' and '-'."),
        ({"topic": ".."}, "Source 'shop': '..' is not a topic name"),
        ({"topic": "shop.dead"}, "Source 'shop': its topic 'shop.dead' is also its dead-letter topic"),
        (
            {"topic": "shop_dead"},
            "Source 'shop': its topic 'shop_dead' is also its dead-letter topic 'shop.dead' (Kafka",
        ),
        ({"format": "xml"}, "Source 'shop': the format 'xml' is not known. There are: json."),
        ({"format": None}, "Source 'shop': format is None; it should be a string."),
        (
            {"id_field": "key"},
            "Source 'shop': id_field is 'key', which is not among its fields ['event_id', 'event_time']",
        ),
        (
            {"id_field": "event_time"},
            "Source 'shop': id_field 'event_time' has the type timestamp; it should be string.",
        ),
        ({"time_field": "at"}, "Source 'shop': time_field is 'at', which is not among its fields"),
        (
            {"time_field": "event_id"},
            "Source 'shop': time_field 'event_id' has the type string; it should be timestamp.",
        ),
        ({"partitions": 0}, "Source 'shop': partitions is 0; it should be a whole number, 1 to 10000."),
        ({"partitions": 10_001}, "Source 'shop': partitions is 10001;"),
        ({"partitions": 2.5}, "Source 'shop': partitions is 2.5;"),
        ({"partitions": True}, "Source 'shop': partitions is True;"),
        ({"partitions": "3"}, "Source 'shop': partitions is '3';"),
        (
            {"retention_hours": 0},
            "Source 'shop': retention_hours is 0; it should be a positive number of hours, or None",
        ),
        ({"retention_hours": -1}, "Source 'shop': retention_hours is -1;"),
        ({"retention_hours": math.nan}, "Source 'shop': retention_hours is nan;"),
        ({"retention_hours": math.inf}, "Source 'shop': retention_hours is inf;"),
        ({"retention_hours": 10**400}, "Source 'shop': retention_hours is 1000"),
        ({"retention_hours": 1e300}, "Source 'shop': retention_hours is 1e+300;"),
        ({"retention_hours": 1e-9}, "Source 'shop': retention_hours is 1e-09;"),
        ({"retention_hours": "24"}, "Source 'shop': retention_hours is '24';"),
        ({"retention_hours": True}, "Source 'shop': retention_hours is True;"),
        ({"retention_bytes": 0}, "Source 'shop': retention_bytes is 0; it should be a positive whole number of bytes"),
        ({"retention_bytes": 1.5}, "Source 'shop': retention_bytes is 1.5;"),
        ({"retention_bytes": 2**63}, "Source 'shop': retention_bytes is 9223372036854775808;"),
        ({"compacted": "no"}, "Source 'shop': compacted is 'no'; it should be True or False."),
        ({"compacted": 1}, "Source 'shop': compacted is 1; it should be True or False."),
    ],
)
def test_settings_that_cannot_work_are_refused_with_a_fix(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError) as refused:
        declare(**settings)
    assert str(refused.value).startswith(message)


# ---- all sources -------------------------------------------------------------


def write(folder: Path, **files: str) -> Path:
    """A folder of declarations; each file is what stands after the import."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(f"from views.source import Source\n{text}\n", encoding="utf-8")
    return folder


def source(name: str, **settings: object) -> str:
    """The text that declares a source."""
    more = "".join(f", {key}={value!r}" for key, value in settings.items())
    return f"{name} = Source({name!r}, fields={ROLES!r}{more})"


def test_the_folder_and_the_catalog_are_loaded_together(tmp_path: Path) -> None:
    write(tmp_path, shop=source("shop"), tills=source("tills", topic="till.events") + "\n" + source("returns"))
    found = load_declarations(tmp_path)
    assert sorted(found.sources) == ["returns", "shop", "tills", "web"]
    assert sorted(load_declarations(tmp_path, with_catalog=False).sources) == ["returns", "shop", "tills"]
    assert found.source("shop") is found.sources["shop"]
    assert found.source_of_topic("till.events") == found.sources["tills"]
    assert found.source_of_topic("tills.dead") == found.sources["tills"]
    assert found.source_of_topic("tills") is None
    assert load_declarations().sources == {"web": web}


def test_a_source_that_a_second_file_imports_is_one_source(tmp_path: Path) -> None:
    write(tmp_path, a=source("shop"), b="from views.catalog.web import web", c=source("shop"))
    assert sorted(load_declarations(tmp_path).sources) == ["shop", "web"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"a": source("shop"), "b": source("till", topic="shop")},
            "The sources 'shop' and 'till' both read the topic 'shop'. Give one of them another topic.",
        ),
        (
            {"a": source("shop", topic="a.b"), "b": source("till", topic="a_b")},
            "The sources 'shop' and 'till' both read the topic 'a_b' (for Kafka the same name as 'a.b'). "
            "Give one of them another topic.",
        ),
        (
            {"a": source("shop"), "b": source("till", topic="shop.dead")},
            "Source 'till': its topic 'shop.dead' is the dead-letter topic of source 'shop'. Choose another topic.",
        ),
        (
            {"a": source("zoo"), "b": source("aviary", topic="zoo.dead")},
            "Source 'aviary': its topic 'zoo.dead' is the dead-letter topic of source 'zoo'. Choose another topic.",
        ),
        (
            {"a": source("shop"), "b": source("shop_dead")},
            "Source 'shop_dead': its topic 'shop_dead' is the dead-letter topic of source 'shop' (for Kafka the same "
            "name as 'shop.dead'). Choose another topic.",
        ),
        (
            {"a": source("shop"), "b": source("shop", partitions=9)},
            "/b.py: source 'shop' is declared twice, differently.",
        ),
        ({"a": source("web")}, "/a.py: source 'web' is declared twice, differently."),
        ({"a": source("shop", partitions=2.5)}, "/a.py: Source 'shop': partitions is 2.5; it should be a whole number"),
        ({"a": "1 / 0"}, "/a.py cannot be loaded: ZeroDivisionError: division by zero"),
        ({"a": "def ("}, "/a.py cannot be loaded: SyntaxError: "),
        ({"a": "import no_such_module_here"}, "/a.py cannot be loaded: ModuleNotFoundError: "),
    ],
)
def test_declarations_that_do_not_go_together_are_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        load_declarations(write(tmp_path, **files))
    assert str(refused.value).removeprefix(str(tmp_path)).startswith(message)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"views_dir is '.*nowhere', which is not a folder"):
        load_declarations(tmp_path / "nowhere")


def test_a_source_that_is_not_declared_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"There is no source 'shop'. There are: web\."):
        load_declarations(tmp_path).source("shop")
