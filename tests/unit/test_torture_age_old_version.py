"""The formats of 0.1.0 that ageing writes in the middle of a life, compared with those that 0.1.0 itself wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hand_off import publish_log
from hand_off.manifests import read_manifest
from master_dataset.table.checks.fsck import quick_check
from master_dataset.table.history import read_history
from master_dataset.table.ledger import ledger_file
from master_dataset.table.paths import own_folder, table_path
from master_dataset.table.sealing import seal
from master_dataset.table.segments import list_segments
from tests.hand_made_table import Table
from tests.old_home import batch_data, unpack
from tests.serving_data import Place
from torture.age.old_version import unseal_commits, write_old_manifests, write_old_publish_log


@pytest.fixture
def old(tmp_path: Path) -> Place:
    return batch_data(unpack(tmp_path))


def publish_after(place: Place, run: int) -> None:
    """The next run, which has nothing new."""
    place.publish(run + 1, read_manifest(place.folder, run).cut, [], base=run)


def test_publish_log_is_byte_by_byte_what_0_1_0_wrote_and_migrates_again(old: Place) -> None:
    written = old.folder.publish_log.read_bytes()
    publish_after(old, 2)
    assert not old.folder.publish_log.exists()
    before = publish_log.read(old.folder)
    write_old_publish_log(old.folder)
    assert old.folder.publish_log.read_bytes().startswith(written)
    assert publish_log.read(old.folder) == before
    publish_after(old, 3)
    assert not old.folder.publish_log.exists()
    assert publish_log.read(old.folder)[:-1] == before


def test_manifests_have_the_members_that_those_of_0_1_0_have(old: Place) -> None:
    theirs = json.loads(old.folder.manifest(2).read_text())
    publish_after(old, 2)
    write_old_manifests(old.folder)
    ours = json.loads(old.folder.manifest(3).read_text())
    assert ours.keys() == theirs.keys()
    assert ours["app"] == "0.1.0"
    assert [view.keys() for view in ours["views"]] == [view.keys() for view in theirs["views"]]
    assert json.loads(old.folder.manifest(2).read_text()) == theirs
    assert not any(view.max_key_bytes for view in read_manifest(old.folder, 3).views)


def test_unsealed_ledger_and_log_are_what_0_1_0_wrote_and_can_be_sealed_again(old: Place) -> None:
    path = table_path(old.settings, "shop")
    written, commits = ledger_file(path).read_bytes(), read_history(path).commits
    table = Table.__new__(Table)
    table.path = path
    newest = commits[-1].version
    table.checkpoint(newest - 2)
    table.checkpoint(newest)
    sealed = seal(path, segment_commits=2, min_commits=1)
    for version in range(1, newest - 1):
        table.log_file(version).unlink()
    assert unseal_commits(path) == newest - 2
    assert ledger_file(path).read_bytes() == written
    assert read_history(path).commits == commits
    assert not list_segments(path)
    assert not (own_folder(path) / "summaries").exists()
    assert not [finding for finding in quick_check(path) if finding.is_damage]
    assert seal(path, segment_commits=2, min_commits=1) == sealed
