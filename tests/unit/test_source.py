"""Sources: what may be declared, and what is refused with the source, the place and a fix."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
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
    ("field", "default"),
    [
        ("a tinyint default -128", -128),
        ("a bigint not null default 9223372036854775807", 2**63 - 1),
        (r"a string default 'it\'s >> that'", "it's >> that"),
        ("a string default ''", ""),
        ("a boolean default false", False),
        ("a double default 1e3", 1000.0),
        ("a float default 0.1", 0.10000000149011612),
        ("a decimal(6,2) default -1.5", Decimal("-1.50")),
        ("a decimal(6,2) default -0", Decimal("0.00")),
        ("a date default '2026-02-28'", date(2026, 2, 28)),
        ("a timestamp default '2026-02-28T01:00:00+01:00'", datetime(2026, 2, 28, tzinfo=UTC)),
        ("a int", None),
        ("`default` int default 3 comment 'default 4'", 3),
    ],
)
def test_default_is_a_constant_of_the_fields_type(field: str, default: Any) -> None:
    found = declare(field).schema[2]
    assert (found.default, type(found.default)) == (default, type(default))
    assert str(found.default) == str(default)
    assert found.is_required == ("not null" in field)


def test_struct_may_end_with_a_default() -> None:
    found = declare("a struct<b: struct<x: int, y: double default -1e-3>>, c int not null default 7")
    (inner,) = found.schema[2].type.fields
    assert [(field.name, field.default) for field in inner.type.fields] == [("x", None), ("y", -0.001)]
    assert (found.schema[3].default, found.schema[3].is_required) == (7, True)


def test_aliases_are_given_by_path() -> None:
    found = declare("user string, p struct<url: string, ms: int>", aliases={"user": ("uid",), "p.url": ("uri", "u")})
    user, properties = found.schema[2:]
    assert (user.names, properties.names) == (("user", "uid"), ("p",))
    assert [field.names for field in properties.type.fields] == [("url", "uri", "u"), ("ms",)]
    assert properties.type.ddl() == "struct<`url`:string,`ms`:int>", "the type is the declared one"


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
        ("a int null", "a: 'NULL'", "Write 'a int'"),
        ("s array<struct<x: int not null>>", "s.x: 'NOT NULL'", "inside an array or a map"),
        ("s map<string, struct<x: int default 1>>", "s.x: 'DEFAULT 1'", "inside an array or a map"),
        ("a int default null", "a: 'NULL' is no default of a int", "a constant"),
        ("a int default 'x'", "a: \"'x'\"", "a constant"),
        ("a int default 1 + 1", "a: '1 + 1'", "a constant"),
        ("a int default 2147483648", "a: '2147483648'", "a constant"),
        ("a tinyint default 1.5", "a: '1.5'", "a constant"),
        ("a decimal(4,2) default 123.4", "a: '123.4'", "a constant"),
        ("a decimal(4,2) default 0.001", "a: '0.001'", "a constant"),
        ("a double default 1e999", "a: '1e999'", "a constant"),
        ("a float default 1e39", "a: '1e39'", "a constant"),
        ("a boolean default 0", "a: '0'", "a constant"),
        ("a string default 5", "a: '5'", "a constant"),
        ("a date default '2026-02-30'", "a: \"'2026-02-30'\"", "a constant"),
        ("a array<int> default 1", "a: '1'", "a constant"),
        ("a struct<x: int> default 1", "a: '1'", "a constant"),
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
        ({"key_field": None}, "Source 'shop': key_field is None; it should be a string."),
        ({"key_field": "user_id"}, "Source 'shop': key_field is 'user_id', which is not among its fields ['event_id'"),
        ({"key_field": "event_time"}, "Source 'shop': key_field 'event_time' has the type timestamp; it should be"),
        (
            {"fields": f"{ROLES}, user_id string", "key_field": "user_id", "compacted": True},
            "Source 'shop': it is compacted, and key_field is 'user_id': Kafka would keep only the last event of each",
        ),
        ({"topic": 7}, "Source 'shop': topic is 7; it should be a string."),
        ({"topic": "a b"}, "Source 'shop': 'a b' is not a topic name; Kafka allows letters, digits, '.', '_' and '-'."),
        ({"topic": ".."}, "Source 'shop': '..' is not a topic name"),
        ({"topic": "shop.dead"}, "Source 'shop': its topic 'shop.dead' is also its dead-letter topic"),
        (
            {"topic": "shop_dead"},
            "Source 'shop': its topic 'shop_dead' is also its dead-letter topic 'shop.dead' (Kafka",
        ),
        (
            {"format": "xml"},
            "Source 'shop': the format 'xml' is not known. There are: json, json_schema, avro, protobuf.",
        ),
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
        ({"aliases": ["a"]}, "Source 'shop': aliases is ['a']; it should be a dict"),
        ({"aliases": {"a": "b"}}, "Source 'shop': aliases has 'a': 'b'; it should be a tuple of 1 to 16 names."),
        ({"aliases": {"a": ()}}, "Source 'shop': aliases has 'a': (); it should be a tuple"),
        ({"aliases": {"a": ("b c",)}}, "Source 'shop': aliases: 'b c' of 'a' cannot be the name of a field."),
        ({"aliases": {"a": ("_corrupt",)}}, "Source 'shop': aliases: '_corrupt' of 'a' cannot be"),
        (
            {"aliases": {"a": ("b",)}},
            "Source 'shop': fields: aliases names 'a', which is not among its fields ['event_id', 'event_time'].",
        ),
        (
            {"fields": ROLES + ", a int, b int", "aliases": {"a": ("B",)}},
            "Source 'shop': fields: aliases: 'b' of 'b' is also a name of 'a' (Spark ignores case).",
        ),
        (
            {"fields": ROLES + ", s array<struct<x: int>>", "aliases": {"s.x": ("y",)}},
            "Source 'shop': fields: aliases names 's.x', which is not among its fields",
        ),
        ({"aliases": {"event_id": ("id",)}}, "Source 'shop': id_field 'event_id' has aliases; declare it under"),
        (
            {"fields": "event_id string, event_time timestamp default '2026-01-01'"},
            "Source 'shop': time_field 'event_time' has a default; a record without it has one already.",
        ),
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
