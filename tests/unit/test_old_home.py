"""A home that Tidemark 0.1.0 wrote: this version reads it, migrates it when it writes, and gives the same answers.

What needs a stack is in tests/system/test_upgrade.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from batch_layer.index.layout import FORMAT
from hand_off import publish_log
from hand_off.manifests import read_manifest
from infra import home as home_module
from infra.errors import HomeError
from infra.home import LAYOUT, Home, read_json
from infra.rest.access_keys import add_key, read_keys
from infra.version import VERSION
from master_dataset.table.checks.fsck import quick_check
from master_dataset.table.history import read_history
from master_dataset.table.ledger import read_ledger, read_ledger_file
from master_dataset.table.paths import table_path
from master_dataset.table.sealing import seal
from master_dataset.table.segments import sealed_until
from serving_layer.alerts.journal import open_journal
from serving_layer.errors import NoBatchView
from tests import old_home
from tests.hand_made_table import Table
from tests.old_home import Recorded, batch_answers
from tests.serving_data import Place
from tidemark.backup.backup import back_up
from tidemark.backup.restore import restore


@pytest.fixture
def old(tmp_path: Path) -> Place:
    return old_home.batch_data(old_home.unpack(tmp_path))


@pytest.fixture
def recorded(old: Place) -> Recorded:
    return old_home.recorded(old.home)


def publish_next(place: Place) -> None:
    """Run 3, which goes on from run 2 and has nothing new."""
    newest = read_manifest(place.folder, 2)
    place.publish(3, newest.cut, [], base=2)


def test_views_mean_the_same_as_then(old: Place) -> None:
    """Else every view would be a new one, which has no answers before a full run."""
    assert {view.name: view.hash for view in old.views} == publish_log.last(old.folder).catalog


def test_index_and_publish_log_give_the_same_answers_without_a_new_run(old: Place, recorded: Recorded) -> None:
    assert batch_answers(old, recorded, 2) == recorded.batch["2"]
    assert old.folder.publish_log.is_file(), "reading changes nothing"


def test_index_of_another_format_is_refused_by_its_number_until_the_next_run(
    old: Place, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The format is that of 0.1.0. A version that changes it reads the files of 0.1.0 too: see the test below."""
    with monkeypatch.context() as later:
        later.setattr("batch_layer.index.files.FORMAT", FORMAT + 1)
        later.setattr("batch_layer.index.files.READABLE", {FORMAT + 1, FORMAT + 2})
        reads = (
            rf"has format {FORMAT}; this version of Tidemark reads {FORMAT + 1} and {FORMAT + 2}. The next batch run"
        )
        with pytest.raises(NoBatchView, match=reads):
            batch_answers(old, recorded, 2)
        old.publish(3, read_manifest(old.folder, 2).cut, [])
        publish_log.serve(old.folder, 2)
        with pytest.raises(NoBatchView, match=reads):
            batch_answers(old, recorded, 2)
    assert batch_answers(old, recorded, 2) == recorded.batch["2"], "refused, not changed"


def test_version_with_another_format_that_reads_this_one_too_answers_without_a_new_run(
    old: Place, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batch_layer.index.files.FORMAT", FORMAT + 1)
    monkeypatch.setattr("batch_layer.index.files.READABLE", {FORMAT, FORMAT + 1})
    assert batch_answers(old, recorded, 2) == recorded.batch["2"]


def test_publish_log_is_migrated_by_the_next_run_and_old_runs_stay(old: Place, recorded: Recorded) -> None:
    publish_next(old)
    assert not old.folder.publish_log.exists()
    assert [entry.run for entry in publish_log.read(old.folder)] == [0, 1, 2, 3]
    for run in (1, 2):
        publish_log.serve(old.folder, run)
        assert batch_answers(old, recorded, run) == recorded.batch[str(run)]


def test_ledger_is_read_and_sealed(old: Place) -> None:
    path = table_path(old.settings, "shop")
    assert not [finding for finding in quick_check(path) if finding.is_damage]
    before = read_ledger(path)
    newest = max(before)
    assert newest >= 4
    assert sum(proof.rows for proof in before.values()) == sum(old_home.recorded(old.home).end.values())
    table = Table.__new__(Table)
    table.path = path
    table.checkpoint(newest - 2)
    table.checkpoint(newest)
    assert seal(path, segment_commits=2, min_commits=1) > 0
    assert sealed_until(path) == newest - 2
    assert sorted(read_ledger_file(path)) == [newest - 1, newest]
    assert read_ledger(path) == before
    assert read_history(path).newest == newest
    assert not [finding for finding in quick_check(path) if finding.is_damage]


def test_keys_and_alert_journal_are_read_and_a_change_raises_the_layout(old: Place, recorded: Recorded) -> None:
    assert read_keys(old.home).keys() == {"admin", old_home.SECRET_OF}
    journal = open_journal(old.settings)
    assert journal.mutes.active().keys() == {"busy"}
    assert [each["id"] for each in recorded.alert["episodes"]]
    journal.close()
    Home(old.home).check()
    assert read_json(old.home / "home.json")["layout"] == old_home.OLD_LAYOUT
    add_key(old.home, "later", ["query"])
    assert read_json(old.home / "home.json")["layout"] == LAYOUT
    assert read_keys(old.home).keys() == {"admin", old_home.SECRET_OF, "later"}


def test_downgrade_is_refused_with_two_versions(old: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(old.home)
    home.claim()
    assert read_json(old.home / "home.json") == {"layout": LAYOUT, "version": VERSION}
    assert VERSION != old_home.VERSION
    with monkeypatch.context() as then:  # what 0.1.0 knew
        then.setattr(home_module, "LAYOUT", old_home.OLD_LAYOUT)
        then.setattr(home_module, "VERSION", old_home.VERSION)
        for act in (home.check, home.claim, home.prepare):
            with pytest.raises(HomeError) as refused:
                act()
            assert f"last written by Tidemark {VERSION} with layout {LAYOUT}; this is Tidemark 0.1.0" in str(
                refused.value
            )
    home.prepare()


def test_it_can_be_backed_up_before_anything_is_migrated_and_restored(
    old: Place, tmp_path: Path, recorded: Recorded
) -> None:
    back_up(old.settings, tmp_path / "backups")
    assert old.folder.publish_log.is_file()
    restored = old_home.batch_data(tmp_path / "restored", old.home)
    restore(restored.settings, tmp_path / "backups")
    assert batch_answers(restored, recorded, 2) == recorded.batch["2"]
