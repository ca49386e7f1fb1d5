"""A home that Tidemark 0.1.0 wrote: this version reads it, migrates it when it writes, and gives the same answers.

`tests/fixtures/home-0.1.0.tar.xz` was made by the code of 0.1.0: two runs with its index builder, publish
log and manifests, what its query engine answered, a
ledger with four commits (their data files are made by hand, as in `hand_made_table`), an access
key, an alert journal with a mute.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from batch_layer.index.layout import FORMAT
from hand_off import publish_log
from infra.home import LAYOUT, Home, read_json
from infra.rest.access_keys import add_key, read_keys
from master_dataset.cut import cut_to_json
from master_dataset.table.checks.fsck import quick_check
from master_dataset.table.history import read_history
from master_dataset.table.ledger import read_ledger, read_ledger_file
from master_dataset.table.paths import table_path
from master_dataset.table.sealing import seal
from master_dataset.table.segments import sealed_until
from serving_layer.alerts.journal import open_journal
from serving_layer.engine import QueryEngine
from serving_layer.errors import NoBatchView
from serving_layer.query.limits import QueryLimits
from serving_layer.query.parse import parse_query
from tests.hand_made_table import Table
from tests.serving_data import SALES, TOTALS, Place, events
from tidemark.backup.backup import back_up
from tidemark.backup.restore import restore

FIXTURE = Path(__file__).parents[1] / "fixtures" / "home-0.1.0.tar.xz"
WINDOW = [("from", "2025-12-28"), ("to", "2026-03-10"), ("grain", "1d")]


@pytest.fixture
def old(tmp_path: Path) -> Place:
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    return Place(tmp_path / "home", views=(SALES, TOTALS))


@pytest.fixture
def recorded(old: Place) -> dict[str, Any]:
    """What 0.1.0 answered from each run."""
    found = json.loads((old.home.parent / "answers.json").read_text(encoding="utf-8"))
    assert all(len(rows) > 2 for answered in found.values() for _run, _cut, rows in answered)
    return dict(found)


def answers(place: Place) -> list[Any]:
    engine = QueryEngine(place.settings, place.declarations)
    try:
        found: list[Any] = []
        for name, by in (("sales", [("by", "item,size")]), ("totals", [])):
            query = parse_query(engine.served_view(name), [*WINDOW, *by], now=2e9, limits=QueryLimits())
            result = engine.execute(query)
            assert result.meta.batch is not None
            rows = [[list(row.period), list(row.key), row.answers] for row in result.rows]
            found.append([result.meta.batch.run, cut_to_json(result.meta.batch.cut), rows])
        return found
    finally:
        engine.close()


def test_index_and_publish_log_give_the_same_answers_without_a_new_run(old: Place, recorded: dict[str, Any]) -> None:
    assert answers(old) == recorded["2"]
    assert old.folder.publish_log.is_file(), "reading changes nothing"


def test_index_of_another_format_is_refused_by_its_number_until_the_next_run(
    old: Place, recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The format is that of 0.1.0. A version that changes it reads the files of 0.1.0 too: see the test above."""
    with monkeypatch.context() as later:
        later.setattr("batch_layer.index.files.FORMAT", FORMAT + 1)
        later.setattr("batch_layer.index.files.READABLE", {FORMAT + 1})
        reads = rf"has format {FORMAT}; this version of Tidemark reads {FORMAT + 1}. The next batch run rebuilds it"
        with pytest.raises(NoBatchView, match=reads):
            answers(old)
        old.publish(3, dict.fromkeys(range(3), 18), events(60, 3))
        assert {answered[0] for answered in answers(old)} == {3}
        publish_log.serve(old.folder, 2)
        with pytest.raises(NoBatchView, match=reads):
            answers(old)
    assert answers(old) == recorded["2"], "refused, not changed"


def test_publish_log_is_migrated_by_the_next_run_and_old_runs_stay(old: Place, recorded: dict[str, Any]) -> None:
    old.publish(3, dict.fromkeys(range(3), 18), events(60, 3), base=2)
    assert not old.folder.publish_log.exists()
    assert [entry.run for entry in publish_log.read(old.folder)] == [0, 1, 2, 3]
    for run in (1, 2):
        publish_log.serve(old.folder, run)
        assert answers(old) == recorded[str(run)]


def test_ledger_is_read_and_sealed(old: Place) -> None:
    path = table_path(old.settings, "shop")
    assert not [finding for finding in quick_check(path) if finding.is_damage]
    before = read_ledger(path)
    assert sorted(before) == [1, 2, 3, 4]
    table = Table.__new__(Table)
    table.path = path
    table.checkpoint(2)
    table.checkpoint(4)
    assert seal(path, segment_commits=2, min_commits=1) == 3
    assert sealed_until(path) == 2
    assert sorted(read_ledger_file(path)) == [3, 4]
    assert read_ledger(path) == before
    assert read_history(path).newest == 4
    assert not [finding for finding in quick_check(path) if finding.is_damage]


def test_keys_and_alert_journal_are_read_and_a_change_raises_the_layout(old: Place) -> None:
    assert read_keys(old.home).keys() == {"web"}
    journal = open_journal(old.settings)
    assert journal.mutes.active() == {"late": 9e9}
    journal.close()
    Home(old.home).check()
    assert read_json(old.home / "home.json")["layout"] == 1
    add_key(old.home, "later", ["query"])
    assert read_json(old.home / "home.json")["layout"] == LAYOUT
    assert read_keys(old.home).keys() == {"web", "later"}


def test_it_can_be_backed_up_before_anything_is_migrated_and_restored(
    old: Place, tmp_path: Path, recorded: dict[str, Any]
) -> None:
    back_up(old.settings, tmp_path / "backups")
    assert old.folder.publish_log.is_file()
    restored = Place(tmp_path / "restored", views=(SALES, TOTALS))
    restore(restored.settings, tmp_path / "backups")
    assert answers(restored) == recorded["2"]
