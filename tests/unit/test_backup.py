"""Backup and restore: the same answers at the same cut, nothing copied twice, no damage passed on."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hand_off import publish_log
from hand_off.foundations import Foundation, check_foundation, checksums_of, read_foundation, write_foundation
from hand_off.manifests import read_manifest
from infra.backup_store import BackupError, BackupFolder
from infra.errors import HomeError
from infra.home import LAYOUT, Home, read_json, write_json
from infra.lease import LeaseHeld, PosixLeases, held
from infra.rest.access_keys import add_key, keys_file, read_keys
from infra.settings import Settings, load_settings
from master_dataset.table.checks.fsck import TableDamaged, quick_check
from master_dataset.table.history import read_history
from master_dataset.table.paths import table_path
from master_dataset.table.proofs import Kind, Proof
from serving_layer.alerts.journal import journal_path, open_journal
from serving_layer.engine import QueryEngine
from serving_layer.query.limits import QueryLimits
from serving_layer.query.parse import parse_query
from tests.hand_made_table import Table, append
from tests.serving_data import SALES, TOTALS, Place, events
from tidemark.backup import restore as restore_module
from tidemark.backup.backup import back_up
from tidemark.backup.restore import restore

EVENTS = events(60, 3, days=(0, 2, 40))
WINDOW = [("from", "2025-12-28"), ("to", "2026-03-10")]
ONE, TWO = (dict.fromkeys(range(3), offset) for offset in (8, 15))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A home with two runs, a master table, a key and an alert journal."""
    Home(tmp_path / "home").prepare()
    made = Place(tmp_path / "home", views=(SALES, TOTALS))
    made.begin()
    made.publish(1, ONE, EVENTS)
    made.publish(2, TWO, EVENTS, base=1)
    table = Table(table_path(made.settings, "shop"))
    table.commit(1, append(0, 10), ["a.parquet"])
    table.commit(2, append(10, 20), ["b.parquet"])
    add_key(made.home, "web", ["query"])
    journal = open_journal(made.settings)
    journal.mutes.add("late", 9e9)
    journal.close()
    return made


def again(place: Place, home: Path) -> Place:
    return Place(home, views=place.views)


def settings_of(home: Path) -> Settings:
    return load_settings(home=home, redis_url="redis://127.0.0.1:1/0")


def answers(place: Place) -> tuple[Any, ...]:
    engine = QueryEngine(place.settings, place.declarations)
    try:
        found = []
        for name in ("sales", "totals"):
            view = engine.served_view(name)
            result = engine.execute(parse_query(view, WINDOW, now=2e9, limits=QueryLimits()))
            found.append(
                (
                    result.meta.batch.run,
                    result.meta.batch.cut,
                    [(row.period, row.key, row.answers) for row in result.rows],
                )
            )
        return tuple(found)
    finally:
        engine.close()


def contents(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}


def test_restored_home_gives_the_same_answers_at_the_same_cut(place: Place, tmp_path: Path) -> None:
    expected = answers(place)
    assert expected[0][2]
    done = back_up(place.settings, tmp_path / "backups")
    assert done.manifest.sources["shop"]["run"] == 2
    assert done.manifest.sources["shop"]["master_version"] == 2
    restored = restore(settings_of(tmp_path / "new"), tmp_path / "backups")
    assert restored.kept == []
    new = again(place, tmp_path / "new")
    assert answers(new) == expected
    table = table_path(new.settings, "shop")
    assert not [each for each in quick_check(table) if each.is_damage]
    assert read_history(table).newest == 2
    assert read_keys(new.home).keys() == {"web"}
    assert stat.S_IMODE(keys_file(new.home).stat().st_mode) == 0o600
    journal = open_journal(new.settings)
    assert journal.mutes.active()["late"] == 9e9
    journal.close()
    new.publish(3, dict.fromkeys(range(3), 18), EVENTS, base=2)
    assert publish_log.last(new.folder).run == 3, "it goes on from there"


def test_backup_holds_what_stands_for_removed_records(place: Place, tmp_path: Path) -> None:
    """A backup whose master table names a foundation has it, even if the records were removed while it was made."""
    table = Table.__new__(Table)
    table.path = table_path(place.settings, "shop")
    fields = {"rows": 10, "day": "2026-03-02", "foundation": "00000009"}
    table.commit(3, Proof(Kind.RETAIN, "", "id", {}, {0: 10}, **fields), remove=["a.parquet"])  # type: ignore[arg-type]
    with pytest.raises(BackupError, match="removed from the master dataset"):
        back_up(place.settings, tmp_path / "backups")
    ids = place.folder.ids / "00000009" / "digests" / "a.parquet"
    ids.parent.mkdir(parents=True)
    ids.write_bytes(b"PAR1")
    run = replace(read_manifest(place.folder, 2), ids=("00000009",))
    found = Foundation("00000009", run, "2026-03-02", ("00000009",))
    found = replace(found, checksums=checksums_of(place.folder, found))
    write_foundation(place.folder, found)
    back_up(place.settings, tmp_path / "backups")
    restore(settings_of(tmp_path / "new"), tmp_path / "backups")
    new = again(place, tmp_path / "new")
    assert quick_check(table_path(new.settings, "shop")) == []
    check_foundation(new.folder, read_foundation(new.folder, "00000009"))


def test_second_backup_copies_only_what_is_new(place: Place, tmp_path: Path) -> None:
    first = back_up(place.settings, tmp_path / "backups")
    second = back_up(place.settings, tmp_path / "backups")
    assert first.new_bytes > 0
    assert second.new_bytes == 0
    assert [file.name for file in second.manifest.files] == [file.name for file in first.manifest.files]
    Table.commit(existing(place), 3, append(20, 30), ["c.parquet"])
    third = back_up(place.settings, tmp_path / "backups")
    assert 0 < third.new_bytes < first.new_bytes / 2
    assert third.manifest.sources["shop"]["master_version"] == 3


def existing(place: Place) -> Table:
    table = Table.__new__(Table)
    table.path = table_path(place.settings, "shop")
    return table


def test_older_backup_can_be_named_and_keep_removes_the_oldest(place: Place, tmp_path: Path) -> None:
    back_up(place.settings, tmp_path / "backups")
    Table.commit(existing(place), 3, append(20, 30), ["c.parquet"])
    back_up(place.settings, tmp_path / "backups")
    restore(settings_of(tmp_path / "old"), tmp_path / "backups", 1)
    assert read_history(table_path(settings_of(tmp_path / "old"), "shop")).newest == 2
    done = back_up(place.settings, tmp_path / "backups", keep=1)
    assert done.removed == [1, 2]
    restore(settings_of(tmp_path / "new"), tmp_path / "backups")
    assert answers(again(place, tmp_path / "new")) == answers(place)
    with pytest.raises(BackupError, match="There is no backup 1 in"):
        restore(settings_of(tmp_path / "other"), tmp_path / "backups", 1)


def test_pinned_run_is_restored_with_its_pin(place: Place, tmp_path: Path) -> None:
    publish_log.serve(place.folder, 1)
    expected = answers(place)
    back_up(place.settings, tmp_path / "backups")
    restore(settings_of(tmp_path / "new"), tmp_path / "backups")
    assert answers(again(place, tmp_path / "new")) == expected
    assert expected[0][0] == 1


def test_home_with_data_is_refused_and_left_alone(place: Place, tmp_path: Path) -> None:
    back_up(place.settings, tmp_path / "backups")
    before = contents(place.home)
    with pytest.raises(HomeError, match="holds data, so nothing was restored"):
        restore(place.settings, tmp_path / "backups")
    assert contents(place.home) == before


def test_lost_master_and_batch_data_come_back_and_the_rest_of_the_home_stays(place: Place, tmp_path: Path) -> None:
    """Case 1: Kafka is still there, so the archiver continues from the restored position."""
    expected = answers(place)
    back_up(place.settings, tmp_path / "backups")
    for name in ("master", "batch"):
        (place.home / name).rename(tmp_path / f"lost-{name}")
    (place.home / "kafka" / "data").mkdir()
    (place.home / "kafka" / "data" / "meta.properties").touch()
    add_key(place.home, "later", ["query"])
    done = restore(place.settings, tmp_path / "backups")
    assert answers(place) == expected
    assert read_keys(place.home).keys() == {"web", "later"}
    assert "home/access_keys.json" in done.kept
    assert "archiver continues" in done.advice[0]


def test_restore_beside_a_new_kafka_says_what_to_do(place: Place, tmp_path: Path) -> None:
    back_up(place.settings, tmp_path / "backups")
    done = restore(settings_of(tmp_path / "new"), tmp_path / "backups")
    assert "The Kafka of this home is new" in done.advice[0]
    assert "declare a source of another name" in done.advice[0]


def test_restore_that_was_cut_off_is_completed_by_the_next_and_nothing_else_uses_the_home(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answers(place)
    back_up(place.settings, tmp_path / "backups")
    new = settings_of(tmp_path / "new")
    for steps in (0, 1, 7, 1000):
        left = iter(range(steps))

        def crash(name: str, left: Any = left) -> None:
            if name == "restore.before_end" or next(left, None) is None:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(restore_module, "reach", crash)
            with pytest.raises(KeyboardInterrupt):
                restore(new, tmp_path / "backups")
        with pytest.raises(HomeError, match="was not completed"):
            Home(new.home).prepare()
    back_up(place.settings, tmp_path / "backups")
    with pytest.raises(HomeError, match="Another restore"):
        restore(new, tmp_path / "backups", 2)
    restore(new, tmp_path / "backups", 1)
    Home(new.home).prepare()
    assert answers(again(place, new.home)) == expected


@pytest.mark.parametrize("damage", ["changed", "gone", "shorter"])
def test_damaged_backup_is_noticed_and_the_home_is_not_used(place: Place, tmp_path: Path, damage: str) -> None:
    back_up(place.settings, tmp_path / "backups")
    chunk = max((tmp_path / "backups" / "chunks").rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    if damage == "gone":
        chunk.unlink()
    else:
        chunk.write_bytes(chunk.read_bytes()[1:] + (b"x" if damage == "changed" else b""))
    new = settings_of(tmp_path / "new")
    with pytest.raises(BackupError, match=r"is damaged|is gone"):
        restore(new, tmp_path / "backups")
    with pytest.raises(HomeError, match="was not completed"):
        Home(new.home).prepare()


def test_damaged_manifest_and_names_that_lead_out_are_refused(place: Place, tmp_path: Path) -> None:
    done = back_up(place.settings, tmp_path / "backups")
    for name in ("home/../../x", "/etc/x", "elsewhere/x", "home", "home//x"):
        with pytest.raises(BackupError, match="belongs to no part"):
            restore_module._target(place.settings, name)
    path = tmp_path / "backups" / "backups" / f"{done.manifest.number:08}.json"
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b"access_keys", b"access_keyz"))
    with pytest.raises(BackupError, match="its checksum is wrong"):
        restore(settings_of(tmp_path / "new"), tmp_path / "backups")
    assert not (tmp_path / "new").exists()


def test_damaged_master_is_not_backed_up(place: Place, tmp_path: Path) -> None:
    (table_path(place.settings, "shop") / "a.parquet").write_bytes(b"P")
    with pytest.raises(TableDamaged):
        back_up(place.settings, tmp_path / "backups")
    assert BackupFolder(tmp_path / "backups").numbers() == []


def test_run_that_is_published_meanwhile_is_taken_whole_or_not_at_all(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hand_off import backup_files

    real, calls = backup_files._collect, []

    def collect(*arguments: Any) -> Any:
        said = real(*arguments)
        if not calls:
            place.publish(3, dict.fromkeys(range(3), 18), EVENTS, base=2)
        calls.append(said)
        return said

    monkeypatch.setattr(backup_files, "_collect", collect)
    assert back_up(place.settings, tmp_path / "backups").manifest.sources["shop"]["run"] == 3
    assert len(calls) == 2
    restore(settings_of(tmp_path / "new"), tmp_path / "backups")
    assert answers(again(place, tmp_path / "new")) == answers(place)


def test_backup_goes_to_a_folder_of_its_own_one_at_a_time(place: Place, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="is in the home"):
        back_up(place.settings, place.home / "backups")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text").touch()
    with pytest.raises(BackupError, match="other things in it"):
        back_up(place.settings, tmp_path / "thesis")
    with pytest.raises(BackupError, match="holds no backups"):
        restore(settings_of(tmp_path / "new"), tmp_path / "thesis")
    back_up(place.settings, tmp_path / "backups")
    with held(PosixLeases(tmp_path / "backups"), "backup", 60.0), pytest.raises(LeaseHeld):
        back_up(place.settings, tmp_path / "backups")
    with pytest.raises(HomeError, match="nothing to back up"):
        back_up(settings_of(tmp_path / "none"), tmp_path / "backups")
    modes = {
        stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "backups" / "chunks").rglob("*") if path.is_file()
    }
    assert modes == {0o600}


def test_backup_of_a_newer_layout_is_not_restored(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(place.settings, tmp_path / "backups")
    monkeypatch.setattr(restore_module, "LAYOUT", LAYOUT - 1)
    with pytest.raises(BackupError, match="knows layouts up to"):
        restore(settings_of(tmp_path / "new"), tmp_path / "backups")


def test_home_of_a_newer_layout_is_not_backed_up(place: Place, tmp_path: Path) -> None:
    write_json(place.home / "home.json", {"layout": LAYOUT + 1, "version": "9.0.0"})
    with pytest.raises(HomeError, match=r"9\.0\.0"):
        back_up(place.settings, tmp_path / "backups")
    assert read_json(place.home / "home.json")["layout"] == LAYOUT + 1
    assert journal_path(place.settings).is_file()
