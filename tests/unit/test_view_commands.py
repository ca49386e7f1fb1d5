"""`tidemark views`: words, exit codes, tables and JSON, and that a new file works as it was written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.manifests import Manifest, ViewData, write_manifest
from hand_off.publish_log import Entry
from infra.settings import load_settings
from master_dataset.table.ledger import append_to_ledger
from master_dataset.table.paths import table_path
from master_dataset.table.proofs import Kind, Proof
from tidemark import cli
from views.catalog.page_hits import page_hits
from views.declarations import ALL_EXAMPLES, load_declarations
from views.state_sql import state_sql

CATALOG = load_declarations(examples=ALL_EXAMPLES).views
OWN = """
from views.aggregates import Count
from views.source import Source
from views.view import View
shop = Source("shop", fields="event_id string, event_time timestamp, item string, price double")
sales = View("sales", shop, keys={"item": "item"}, answers={"sold": Count(), "gone": Count(where="1 = 2")})
"""


class Said(NamedTuple):
    out: str
    err: str
    code: int

    def json(self) -> Any:
        assert self.err == ""
        return json.loads(self.out)


Views = Callable[..., Said]


@pytest.fixture
def views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Views:
    """Run a `tidemark views` command on a home of its own."""
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "300")

    def run(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["tidemark", "views", *arguments])
        try:
            cli.main()
            code: int | str | None = 0
        except SystemExit as ended:
            code = ended.code
        out, err = capsys.readouterr()
        return Said(out, err, int(code or 0))

    return run


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.setenv("TIDEMARK_VIEWS_DIR", str(folder))
    return folder


def words(said: Said) -> str:
    """A framed error as one line."""
    return " ".join(said.err.replace("│", " ").split())


# ---- list --------------------------------------------------------------------


def test_list_shows_the_whole_catalog_and_what_of_it_is_active(views: Views) -> None:
    rows = {row["view"]: row for row in views("list", "-o", "json").json()}
    assert sorted(rows) == sorted(CATALOG)
    assert {name for name, row in rows.items() if row["active"]} == {
        view.name for view in CATALOG.values() if view.source.name == "web"
    }
    assert rows["page_hits"] == {
        "view": "page_hits",
        "source": "web",
        "keys": ["url"],
        "grain": "1h",
        "answers": ["hits", "visitors"],
        "definition": page_hits.hash,
        "active": True,
    }


def test_list_as_a_table(views: Views) -> None:
    said = views("list")
    assert (said.err, said.code) == ("", 0)
    lines = {line.split()[0]: line.split() for line in said.out.splitlines() if line.strip()}
    assert page_hits.hash[:12] in lines["page_hits"]
    assert lines["page_hits"][-1] == "yes"
    assert lines["card_attempts"][-1] == "no"


def test_examples_are_switched_on_and_off(views: Views, own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own_folder / "shop.py").write_text(OWN, encoding="utf-8")
    monkeypatch.setenv("TIDEMARK_EXAMPLES", "all")
    assert {row["active"] for row in views("list", "-o", "json").json()} == {True}
    monkeypatch.setenv("TIDEMARK_EXAMPLES", "ads")
    active = {row["view"] for row in views("list", "-o", "json").json() if row["active"]}
    assert active == {"campaign_spend", "sales"}
    monkeypatch.setenv("TIDEMARK_WITH_EXAMPLES", "false")
    assert [row["view"] for row in views("list", "-o", "json").json()] == ["sales"]
    (own_folder / "shop.py").unlink()
    assert views("list") == ("No view is declared. `tidemark views new NAME` creates one.\n", "", 0)


def test_an_example_that_is_not_there_is_one_sentence(views: Views, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_EXAMPLES", "log")
    said = views("list")
    assert said.code == 2
    assert said.err.startswith("tidemark: examples names 'log', which is not a source of the catalog. There are: ads,")


# ---- show --------------------------------------------------------------------


def test_show_tells_types_and_how_exact_each_answer_is(views: Views) -> None:
    found = views("show", "signups", "-o", "json").json()
    assert found["keys"] == [{"key": "site", "expression": CATALOG["signups"].keys["site"], "type": "string"}]
    answers = {row["answer"]: row for row in found["answers"]}
    assert answers["signups"] == {
        "answer": "signups",
        "aggregate": "Count()",
        "expression": None,
        "where": "name = 'signup'",
        "error": "exact",
    }
    assert (answers["visitors"]["aggregate"], answers["visitors"]["error"]) == (
        "Distinct(precision=12)",
        "usually within 1.6%",
    )
    assert (answers["conversion"]["aggregate"], answers["conversion"]["error"]) == ("Derived", "as its parts")
    assert found["definition"] == CATALOG["signups"].hash
    assert found["meaning"] == json.loads(CATALOG["signups"].definition())
    assert "sql" not in found
    assert views("show", "signups", "--sql", "-o", "json").json()["sql"] == state_sql(CATALOG["signups"])


def test_show_as_tables(views: Views) -> None:
    said = views("show", "page_hits")
    assert (said.err, said.code) == ("", 0)
    for text in (page_hits.hash, page_hits.doc, "properties.url", "string", "Distinct(precision=12)", "exact"):
        assert text in said.out
    assert "GROUP BY" not in said.out
    assert state_sql(page_hits) in views("show", "page_hits", "--sql").out
    assert "It has no keys: one group a bucket." in views("show", "top_pages").out


def test_a_view_that_is_not_there_is_refused_with_those_that_are(views: Views) -> None:
    for arguments in (("show", "page_hit"), ("check", "page_hits", "page_hit")):
        said = views(*arguments)
        assert said.code == 2
        assert said.err.startswith(
            "tidemark: There is no view 'page_hit'. There are: campaign_spend, captured_events, card_attempts, "
        )


# ---- check -------------------------------------------------------------------


def test_check_says_that_the_laws_hold(views: Views) -> None:
    rows = views("check", "page_hits", "card_attempts", "--events", "60", "--seed", "5", "-o", "json").json()
    assert [(row["view"], row["events"], row["seed"], row["broken"]) for row in rows] == [
        ("page_hits", 60, 5, []),
        ("card_attempts", 60, 5, []),
    ]
    said = views("check", "--events", "20")
    assert said.code == 0
    assert all(name in said.out for name in CATALOG)
    assert "hold" in said.out


def test_check_hints_at_what_was_not_tried(views: Views, own_folder: Path) -> None:
    (own_folder / "shop.py").write_text(OWN, encoding="utf-8")
    said = views("check", "sales")
    assert said.code == 0
    assert "Answer 'gone' has no value in any group: no generated event reached it." in said.out


def test_check_of_a_broken_view_says_what_is_broken(views: Views, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("views.aggregates.counting.CountAlgebra.merge", lambda _self, left, _right: left)
    said = views("check", "page_hits")
    assert said.code == 1
    assert "broken" in said.out
    assert "View 'page_hits', answer 'hits': " in said.out
    (row,) = json.loads(views("check", "page_hits", "-o", "json").out)
    assert row["broken"][0].startswith("View 'page_hits', answer 'hits': ")


def test_check_of_a_changed_source_says_what_differs_from_its_master_table(
    views: Views, own_folder: Path, tmp_path: Path
) -> None:
    (own_folder / "shop.py").write_text(OWN)
    event = [("event_id", "string"), ("event_time", "timestamp"), ("item", "string"), ("price", "integer")]
    fields = [{"name": name, "type": kind} for name, kind in event]
    schema = {"fields": [{"name": "event", "type": {"type": "struct", "fields": fields}}]}
    commit = tmp_path / "home" / "master" / "shop" / "_delta_log" / f"{0:020}.json"
    commit.parent.mkdir(parents=True)
    commit.write_text(json.dumps({"metaData": {"schemaString": json.dumps(schema)}}))
    said = views("check", "sales", "--events", "20")
    assert said.code == 1
    assert "Source 'shop' was changed" in said.out
    assert "'price' is int in the table and double in the declaration" in said.out
    (row,) = json.loads(views("check", "sales", "--events", "20", "-o", "json").out)
    assert (row["broken"], "'price' is int" in row["source changed"]) == ([], True)


def test_check_says_which_views_lack_removed_records(views: Views, own_folder: Path, tmp_path: Path) -> None:
    (own_folder / "shop.py").write_text(OWN, encoding="utf-8")
    settings = load_settings(home=tmp_path / "home")
    removal = Proof(Kind.RETAIN, "", "id", {}, {0: 20}, rows=20, day="2026-03-02", foundation="1")
    table = table_path(settings, "shop")
    log = table / "_delta_log"
    log.mkdir(parents=True)
    for version, proof in enumerate([Proof(Kind.APPEND, "shop", "id", {}, {0: 20}, rows=20), removal]):
        info = {"commitInfo": {"userMetadata": proof.to_json()}}
        (log / f"{version:020}.json").write_text(json.dumps(info))
        append_to_ledger(table, [(version, proof)])
    sentence = "View 'sales' counts events since cut 0:20 (day 2026-03-02)"
    said = views("check", "sales", "--events", "20")
    assert (said.code, sentence in said.out) == (0, True), "it is in no run yet, and records were removed"
    (view,) = load_declarations(own_folder).views_of("shop")
    folder = BatchFolder.of(settings, "shop")

    def publish(run: int, since: dict[str, Any] | None) -> None:
        data = ViewData("sales", view.hash, "full", (), 0, {}, (), 0.0, since=since)
        write_manifest(folder, Manifest(run, "shop", {0: 20}, None, 0.0, 1.0, 1, 0, 0, (data,), ()))
        publish_log.append(folder, Entry(run, {0: 20}, {"sales": view.hash}, 1.0))

    publish(1, None)
    assert "counts events since" not in views("check", "sales", "--events", "20").out, "it was there before the removal"
    publish(2, {"cut": {"0": 7}, "day": "2026-02-01"})
    (row,) = views("check", "sales", "--events", "20", "-o", "json").json()
    assert row["since"] == {"cut": {"0": 7}, "day": "2026-02-01"}


def test_check_with_spark_says_where_spark_differs(views: Views, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark itself is asked in tests/spark/test_catalog.py."""
    from tidemark.commands import views as view_commands

    found: dict[str, list[str]] = {"page_hits": []}
    monkeypatch.setattr(view_commands, "_differences_of_spark", lambda *_arguments: found)
    said = views("check", "page_hits", "--spark")
    assert (said.code, "hold, with Spark too" in said.out) == (0, True)
    found["page_hits"].append("View 'page_hits', answer 'hits': 3 by Spark, 4 all at once.")
    said = views("check", "page_hits", "--spark")
    assert (said.code, found["page_hits"][0] in said.out) == (1, True)


@pytest.mark.parametrize("arguments", [("--events", "0"), ("--seed", "-1"), ("--nonsense",)])
def test_wrong_usage_of_check_is_exit_code_2(views: Views, arguments: tuple[str, ...]) -> None:
    assert views("check", *arguments).code == 2


# ---- new ---------------------------------------------------------------------


def test_a_new_file_loads_and_passes_its_check(views: Views, own_folder: Path) -> None:
    said = views("new", "my_pages")
    assert (said.err, said.code) == ("", 0)
    assert said.out.startswith(f"Wrote {own_folder / 'my_pages.py'}. ")
    assert "  tidemark views check my_pages " in said.out
    assert "my_pages" in {row["view"] for row in views("list", "-o", "json").json() if row["active"]}
    (row,) = views("check", "my_pages", "-o", "json").json()
    assert (row["broken"], row["hints"]) == ([], [])


def test_a_new_file_can_go_into_a_folder_that_is_not_there_yet(views: Views, tmp_path: Path) -> None:
    folder = tmp_path / "some" / "views"
    said = views("new", "my_pages", "--dir", str(folder))
    assert f"TIDEMARK_VIEWS_DIR={folder} tidemark views check my_pages" in said.out
    assert list(load_declarations(folder, with_catalog=False).views) == ["my_pages"]


def test_a_new_file_overwrites_nothing(views: Views, own_folder: Path) -> None:
    (own_folder / "sales.py").write_text(OWN, encoding="utf-8")
    said = views("new", "sales")
    assert said.code == 2
    assert "exists already, and was not changed." in words(said)
    assert (own_folder / "sales.py").read_text(encoding="utf-8") == OWN


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("page_hits", "--dir", "mine"), "there is a view 'page_hits' already: `tidemark views show page_hits`."),
        (("Pages", "--dir", "mine"), "'Pages' cannot be the name of a view: lower-case letters,"),
        (("../pages", "--dir", "mine"), "'../pages' cannot be the name of a view"),
        (("class", "--dir", "mine"), "'class' cannot be the name of a view"),
        (("pages",), "name the folder to write to: --dir my_views, or the setting views_dir."),
        (("pages", "--dir", "mine", "--from-subject", "com.acme.Order"), "Name the topic with --topic."),
    ],
)
def test_what_cannot_be_begun_is_refused(
    views: Views, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = views("new", *arguments)
    assert said.code == 2
    assert message in words(said)
    assert list(tmp_path.iterdir()) == [], "nothing was written"
