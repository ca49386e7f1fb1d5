"""`tidemark batch`: words, exit codes, tables and JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import structlog

from batch_layer.lease import lease
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.errors import BatchError, LeaseHeld
from hand_off.manifests import DataFile, Manifest, Phase, ViewData, write_manifest
from hand_off.publish_log import Entry
from infra.settings import load_settings
from tidemark import cli

Tidemark = Callable[..., tuple[str, str, int]]
HASH = "ab12" * 16


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """The program logs to the standard error of this test, which is closed after it."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def tidemark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tidemark:
    """Run a `tidemark batch` command on a home of its own: (output, errors, exit code)."""
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "300")

    def run(*arguments: str) -> tuple[str, str, int]:
        monkeypatch.setattr(sys, "argv", ["tidemark", "batch", *arguments])
        try:
            cli.main()
            code: int | str | None = 0
        except SystemExit as ended:
            code = ended.code
        out, err = capsys.readouterr()
        return out, err, int(code or 0)

    return run


def rows_of(said: tuple[str, str, int]) -> list[dict[str, Any]]:
    out, err, code = said
    assert (err, code) == ("", 0)
    found = json.loads(out)
    assert isinstance(found, list)
    return found


def manifest(run: int, source: str = "web") -> Manifest:
    view = ViewData(
        "page_hits", HASH, "full" if run == 1 else "continued",
        (DataFile("2026-01-01", f"{run}.parquet", 3, 4),), 3, {"hits": "1234"}, (f"page_hits-{run}",), 0.25,
    )  # fmt: skip
    return Manifest(run, source, {0: run, 1: 7}, run - 1 or None, 1e9, 1e9 + 61, 9, 1, 2, (view,), (f"{run}.ids",))


@pytest.fixture
def web(tmp_path: Path) -> BatchFolder:
    """Three runs of the source `web`."""
    return make_runs(BatchFolder.of(load_settings(home=tmp_path / "home"), "web"))


def make_runs(folder: BatchFolder) -> BatchFolder:
    for run in (1, 2, 3):
        for path in (folder.table("page_hits", HASH) / f"{run}.parquet", folder.ids / f"{run}.ids",
                     folder.indexes / f"page_hits-{run}"):  # fmt: skip
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("1234")
        write_manifest(folder, manifest(run, folder.source))
        publish_log.append(folder, Entry(run, {0: run, 1: 7}, {"page_hits": HASH}, 1e9 + run))
    return folder


def states(tidemark: Tidemark) -> dict[int, str]:
    return {row["run"]: row["state"] for row in rows_of(tidemark("list", "-o", "json"))}


# ---- run -----------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What runs are asked for, and what becomes of them by source: an error, or nothing for a run."""
    asked: dict[str, Any] = {"fate": {}, "runs": []}

    def run_batch(
        _settings: object, source: str, *, full: bool, unpin: bool, overtake: bool, report: Callable[..., None]
    ) -> Manifest:
        asked["runs"].append((source, full, unpin))
        asked["overtake"] = overtake
        report("reading", 1, 2)
        report("writing", 0, 0)
        if error := asked["fate"].get(source):
            raise error
        return manifest(2, source)

    module = ModuleType("batch_layer.run")
    module.run_batch = run_batch  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "batch_layer.run", module)
    monkeypatch.setattr("batch_layer.run_sources.sources_with_views", lambda _settings: ["ads", "web"])
    return asked


def test_run_makes_one_for_every_source_with_views(tidemark: Tidemark, made: dict[str, Any]) -> None:
    rows = rows_of(tidemark("run", "-o", "json"))
    assert made["runs"] == [("ads", False, True), ("web", False, True)]
    assert not made["overtake"]
    assert [row["source"] for row in rows] == ["ads", "web"]
    assert {**rows[1]} == {
        "source": "web", "run": 2, "cut": {"0": 2, "1": 7}, "kind": "continued", "views": 1, "rows": 3, "events": 9,
        "duplicates": 1, "invalid": 2, "seconds": 61.0,
    }  # fmt: skip


def test_run_of_named_sources_in_full_that_leaves_readers_where_they_are(
    tidemark: Tidemark, made: dict[str, Any]
) -> None:
    out, _err, code = tidemark("run", "-s", "web", "--source", "ads", "--full", "--keep-pin")
    assert code == 0
    assert made["runs"] == [("web", True, False), ("ads", True, False)]
    tidemark("run", "-s", "web", "--overtake")
    assert made["overtake"]
    assert "continued" in out


@pytest.mark.parametrize(
    ("fate", "code"),
    [
        ({"ads": LeaseHeld("It is held.")}, 75),
        ({"ads": BatchError("It failed.")}, 1),
        ({"ads": LeaseHeld("It is held."), "web": BatchError("It failed.")}, 1),
    ],
)
def test_source_that_fails_keeps_no_other_from_its_run(
    tidemark: Tidemark, made: dict[str, Any], fate: dict[str, Exception], code: int
) -> None:
    made["fate"] = fate
    out, err, found = tidemark("run", "-o", "json")
    assert found == code
    assert len(made["runs"]) == 2
    assert err == "".join(f"tidemark: {error}\n" for error in fate.values())
    assert [row["source"] for row in json.loads(out)] == [name for name in ("ads", "web") if name not in fate]


def test_unforeseen_error_of_a_run_is_a_message_and_its_traceback_is_in_the_log(
    tidemark: Tidemark, made: dict[str, Any], tmp_path: Path
) -> None:
    java = "org.apache.spark.sql.delta.DeltaAnalysisException: [DELTA_MISSING_DELTA_TABLE] no table"
    thrown = type("Thrown", (), {"toString": lambda _self: f"{java}\n\tat org.apache.spark"})()
    failed = RuntimeError("An error occurred while calling o5.execute.\n: many\nlines")
    failed.java_exception = thrown  # type: ignore[attr-defined]
    made["fate"] = {"ads": ZeroDivisionError("division\nby zero"), "web": failed}
    assert tidemark("run") == (
        "",
        "tidemark: The run of source 'ads' failed: ZeroDivisionError: division. See `tidemark logs batch`.\n"
        f"tidemark: The run of source 'web' failed: {java}. See `tidemark logs batch`.\n",
        1,
    )
    log = (tmp_path / "home" / "logs" / "batch.log").read_text()
    assert "batch run of ads failed\nTraceback" in log
    assert "ZeroDivisionError: division\nby zero" in log


# ---- list and show ---------------------------------------------------------------


def test_list_of_a_home_without_runs(tidemark: Tidemark, tmp_path: Path) -> None:
    assert tidemark("list") == ("There are no runs yet. `tidemark batch run` makes one.\n", "", 0)
    assert rows_of(tidemark("list", "-o", "json")) == []
    assert not (tmp_path / "home").exists()


def test_list_names_every_run_newest_first(tidemark: Tidemark, web: BatchFolder) -> None:
    rows = rows_of(tidemark("list", "-o", "json"))
    assert [row["run"] for row in rows] == [3, 2, 1]
    assert rows[0] == {
        "source": "web", "run": 3, "cut": {"0": 3, "1": 7}, "kind": "continued", "views": 1, "rows": 3,
        "against speed": "not compared", "when": "2001-09-09 01:46:43Z", "state": "served",
    }  # fmt: skip
    assert (rows[2]["kind"], rows[2]["state"]) == ("full", "published")
    table, _err, code = tidemark("list")
    assert code == 0
    assert all(word in table for word in ("0:3,1:7", "continued", "served"))


def test_list_says_which_runs_have_no_data_any_more(tidemark: Tidemark, web: BatchFolder) -> None:
    web.manifest(1).unlink()
    web.manifest(2).write_text("{}")
    assert [row["kind"] for row in rows_of(tidemark("list", "-o", "json"))] == ["continued", "damaged", "pruned"]


def test_list_of_a_source_that_has_no_runs_names_those_that_have(tidemark: Tidemark, web: BatchFolder) -> None:
    assert tidemark("list", "-s", "wbe") == (
        "", "tidemark: Source 'wbe' has no runs. Sources with runs: web.\n", 1
    )  # fmt: skip


def test_show_prints_the_manifest(tidemark: Tidemark, web: BatchFolder) -> None:
    out, _err, code = tidemark("show", "2", "-o", "json")
    assert code == 0
    assert json.loads(out) == json.loads(json.dumps(manifest(2).to_json()))
    table = tidemark("show", "2")[0]
    assert all(word in table for word in ("run 1", "page_hits", "ab12ab12ab12", "hits=1234", "0:2,1:7"))
    assert "jobs" not in table, "an older Tidemark kept no timeline"


def test_show_prints_how_long_each_phase_took(tidemark: Tidemark, web: BatchFolder) -> None:
    write_manifest(web, replace(manifest(4), timeline=(Phase("page_hits: index", 0.25, 3),)))
    table = tidemark("show", "4")[0]
    assert all(word in table for word in ("page_hits: index", "0.25", "jobs"))
    timeline = json.loads(tidemark("show", "4", "-o", "json")[0])["timeline"]
    assert timeline == [{"name": "page_hits: index", "seconds": 0.25, "jobs": 3}]


def test_show_of_a_run_that_is_not_there(tidemark: Tidemark, web: BatchFolder) -> None:
    _out, err, code = tidemark("show", "9")
    assert code == 1
    assert "Run 9 of source 'web' has no manifest" in err


def test_source_must_be_named_where_several_have_runs(tidemark: Tidemark, web: BatchFolder) -> None:
    make_runs(BatchFolder(web.root.with_name("ads")))
    _out, err, code = tidemark("show", "2")
    assert code == 2
    assert "--source NAME. Sources with runs: ads, web." in err
    assert json.loads(tidemark("show", "2", "-s", "ads", "-o", "json")[0])["source"] == "ads"


# ---- rollback --------------------------------------------------------------------


def test_rollback_and_back(tidemark: Tidemark, web: BatchFolder) -> None:
    assert states(tidemark) == {3: "served", 2: "published", 1: "published"}
    (row,) = rows_of(tidemark("rollback", "1", "-o", "json"))
    assert (row["run"], row["state"], row["frozen"]) == (1, "pinned", False)
    assert states(tidemark) == {3: "published", 2: "published", 1: "pinned"}
    (row,) = rows_of(tidemark("rollback", "--latest", "-o", "json"))
    assert (row["run"], row["state"]) == (3, "served")
    assert states(tidemark) == {3: "served", 2: "published", 1: "published"}


@pytest.mark.parametrize("arguments", [(), ("1", "--latest"), ("0",), ("x",)])
def test_rollback_to_nothing_or_to_two_things_is_wrong_usage(
    tidemark: Tidemark, web: BatchFolder, arguments: tuple[str, ...]
) -> None:
    assert tidemark("rollback", *arguments)[2] == 2
    assert publish_log.pinned(web) is None


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda web: web.manifest(1).unlink(), "Run 1 of source 'web' has no manifest"),
        (lambda web: (web.ids / "1.ids").unlink(), "1.ids is gone. Choose another run"),
        (lambda web: (web.table("page_hits", HASH) / "1.parquet").write_text("1"), "has 1 bytes instead of 4"),
    ],
)
def test_rollback_to_a_run_that_is_not_whole_is_refused(
    tidemark: Tidemark, web: BatchFolder, damage: Callable[[BatchFolder], None], words: str
) -> None:
    damage(web)
    _out, err, code = tidemark("rollback", "1")
    assert code == 1
    assert words in err
    assert publish_log.pinned(web) is None


def test_rollback_to_a_run_that_was_never_published_is_refused(tidemark: Tidemark, web: BatchFolder) -> None:
    write_manifest(web, manifest(4))
    _out, err, code = tidemark("rollback", "4")
    assert code == 1
    assert "no run 4 in its publish log. There are: 1, 2, 3." in err


# ---- prune -----------------------------------------------------------------------


def test_prune_says_first_and_deletes_then(tidemark: Tidemark, web: BatchFolder) -> None:
    (said,) = rows_of(tidemark("prune", "--keep", "1", "--dry-run", "-o", "json"))
    assert said == {"source": "web", "kept": "3", "would go": "1, 2", "files": 6, "bytes": 24}
    assert web.manifest(1).is_file()
    (done,) = rows_of(tidemark("prune", "--keep", "1", "-o", "json"))
    assert done == {"source": "web", "kept": "3", "deleted": "1, 2", "files": 6, "bytes": 24}
    assert os.listdir(web.runs) == ["00000003.json"]  # noqa: PTH208  names are all that is asked for
    assert states(tidemark) == {3: "served", 2: "published", 1: "published"}


def test_prune_keeps_as_many_as_the_setting_says(
    tidemark: Tidemark, web: BatchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rows_of(tidemark("prune", "-o", "json"))[0]["deleted"] == "none"
    monkeypatch.setenv("TIDEMARK_BATCH_KEEP_RUNS", "2")
    assert rows_of(tidemark("prune", "-o", "json"))[0]["deleted"] == "1"


def test_prune_waits_for_nobody(tidemark: Tidemark, web: BatchFolder) -> None:
    with lease(web, "batch run"):
        _out, err, code = tidemark("prune", "--keep", "1")
    assert code == 75
    assert "(batch run)" in err
    assert web.manifest(1).is_file()


def test_prune_that_keeps_nothing_is_wrong_usage(tidemark: Tidemark, web: BatchFolder) -> None:
    assert tidemark("prune", "--keep", "0")[2] == 2


# ---- repair --------------------------------------------------------------------


def damage(folder: BatchFolder, number: int) -> None:
    (folder.root / "publish" / f"{number:08}.json").write_bytes(b"\x00" * 300)


def test_repair_of_a_whole_log_does_nothing(tidemark: Tidemark, web: BatchFolder) -> None:
    before = publish_log.read(web)
    assert tidemark("repair") == ("No entry of a publish log is damaged.\n", "", 0)
    assert publish_log.read(web) == before


def test_repair_rebuilds_damaged_entries_and_says_from_what(tidemark: Tidemark, web: BatchFolder) -> None:
    before = [entry.run for entry in publish_log.read(web)]
    damage(web, 1)
    damage(web, 3)
    out, err, code = tidemark("repair", "-o", "json")
    assert code == 0
    assert json.loads(out) == [
        {"source": "web", "entry": 1, "run": 1, "taken from": "entry 2"},
        {"source": "web", "entry": 3, "run": 3, "taken from": "the manifest of run 3"},
    ]
    assert "publish_log_rebuilt" in err
    assert [entry.run for entry in publish_log.read(web)] == before
    assert tidemark("repair") == ("No entry of a publish log is damaged.\n", "", 0)


def test_repair_asks_where_more_than_one_run_may_be_meant(tidemark: Tidemark, web: BatchFolder) -> None:
    write_manifest(web, manifest(4))
    damage(web, 3)
    for command in (("repair",), ("list",)):
        _out, err, code = tidemark(*command)
        assert code == 1
        assert "more than one run may be meant: 3, 4." in err
        assert "`tidemark batch repair --newest --source web`" in err
    assert tidemark("repair", "--newest")[2] == 0
    assert states(tidemark) == {4: "served", 2: "published", 1: "published"}
