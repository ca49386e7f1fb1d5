"""A damaged publish log is rebuilt from what is left of it and from manifests; the log of 0.1 becomes objects."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.checksums import seal
from hand_off.entries import entry_of, entry_to_json
from hand_off.errors import BatchError, RunRefused
from hand_off.manifests import Manifest, ViewData, from_json, write_manifest
from hand_off.publish_log import Entry
from infra.failpoints import VARIABLE
from tests.tiers import times

GENESIS = Entry(0, {}, {"page_hits": "1f" * 32}, 1.5)
RUNS = (1, 2, 4, 7)


def a_manifest(run: int, cut: int, *, unpin: bool = False) -> Manifest:
    view = ViewData("page_hits", "1f" * 32, "full", (), 0, {}, (), 0.5)
    return Manifest(run, "web", {0: cut, 1: 3}, None, 1e9, 1e9 + run + 0.25, 9, 1, 2, (view,), (), unpin=unpin)


MANIFESTS = [a_manifest(run, 10 * run, unpin=run == 2) for run in RUNS]
LOG = [GENESIS, *map(entry_of, MANIFESTS)]


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    return fill(BatchFolder(tmp_path / "web"))


def fill(folder: BatchFolder) -> BatchFolder:
    """A log of genesis and four runs; between them runs 3 and 5 failed before they had a manifest."""
    publish_log.begin(folder, GENESIS.catalog, GENESIS.at)
    for manifest in MANIFESTS:
        write_manifest(folder, manifest)
        publish_log.append(folder, entry_of(manifest), unpin=manifest.unpin)
    assert publish_log.read(folder) == LOG
    return folder


def object_of(folder: BatchFolder, number: int) -> Path:
    return folder.root / "publish" / f"{number:08}.json"


def flip(text: bytes) -> bytes:
    """One bit, of the first digit after the first quarter."""
    at = next(at for at in range(len(text) // 4, len(text)) if text[at : at + 1].isdigit())
    return text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "torn": lambda text: text[: len(text) // 2],
    "emptied": lambda _text: b"",
    "zeroed": lambda text: b"\x00" * len(text),
    "half zeroed": lambda text: text[: len(text) // 2] + b"\x00" * (len(text) - len(text) // 2),
    "flipped": flip,
    "foreign": lambda _text: b'{"n": 1, "format": 2, "sum": "0"}',
    "no JSON": lambda _text: b"\xff[",
    "removed": lambda _text: None,
}


def damage(folder: BatchFolder, number: int, how: str) -> None:
    path = object_of(folder, number)
    content = DAMAGES[how](path.read_bytes())
    path.unlink() if content is None else path.write_bytes(content)


LAST = len(LOG) - 1


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("number", range(len(LOG)))
def test_damaged_entry_is_rebuilt_in_every_position(folder: BatchFolder, number: int, how: str) -> None:
    if number == LAST and how == "removed":
        return  # of an entry that is gone from the end nothing is left: the run was not published
    damage(folder, number, how)
    found = object_of(folder, number).read_bytes() if how != "removed" else None
    with structlog.testing.capture_logs() as logs:
        assert publish_log.read(folder) == LOG
        assert publish_log.last(folder) == LOG[-1]
        assert publish_log.served(folder) == LOG[-1]
    assert {"event": "publish_log_damaged", "source": "web", "entry": number}.items() <= logs[0].items()
    assert (object_of(folder, number).read_bytes() if how != "removed" else None) == found, "readers change nothing"
    with structlog.testing.capture_logs() as logs:
        assert publish_log.begin(folder, {}, 9.0) == GENESIS
        publish_log.append(folder, Entry(8, {0: 80, 1: 3}, {}, 8.0))
    assert {"event": "publish_log_rebuilt", "source": "web", "entry": number}.items() <= logs[0].items()
    with structlog.testing.capture_logs() as logs:
        assert publish_log.read(folder) == [*LOG, Entry(8, {0: 80, 1: 3}, {}, 8.0)]
        assert publish_log.repair(folder) == []
    assert logs == [], "it was rebuilt for good"


@pytest.mark.parametrize("how", ["torn", "zeroed", "flipped"])
@pytest.mark.parametrize("first", range(len(LOG) - 1))
def test_two_damaged_neighbours_are_rebuilt(folder: BatchFolder, first: int, how: str) -> None:
    damage(folder, first, how)
    damage(folder, first + 1, how)
    assert [repair.number for repair in publish_log.repair(folder)] == [first, first + 1]
    found = publish_log.read(folder)
    assert found[1:] == LOG[1:]
    assert (found[0].run, found[0].cut) == (0, {}), "of genesis the views may be lost"


@settings(max_examples=times(15, 1000), deadline=None)
@given(
    damaged=st.dictionaries(st.integers(0, LAST), st.sampled_from([*DAMAGES])),
    pruned=st.sets(st.sampled_from(RUNS[:-1])),
)
def test_whatever_is_damaged_no_wrong_entry_is_read(
    tmp_path_factory: pytest.TempPathFactory, damaged: dict[int, str], pruned: set[int]
) -> None:
    """Each entry is the one that was published, or is lost; the newest is never lost, unless its object is gone."""
    folder = fill(BatchFolder(tmp_path_factory.mktemp("batch") / "web"))
    for number, how in damaged.items():
        damage(folder, number, how)
    for run in pruned:
        folder.manifest(run).unlink()
    if any(how == "removed" and all(damaged.get(n) == "removed" for n in range(number, LAST + 1))
           for number, how in damaged.items()):  # fmt: skip
        return  # nothing tells that there was more
    for entries in (publish_log.read(folder), publish_log.repair(folder) and publish_log.read(folder)):
        if entries:
            assert entries[-1] == LOG[-1]
            assert all(each in LOG or each.run == 0 for each in entries)
            assert [each.run for each in entries] == sorted({each.run for each in entries})


def test_log_that_ends_with_a_damaged_entry_without_manifest_refuses_to_guess(folder: BatchFolder) -> None:
    """An older run instead would take readers back, and the speed views are ahead of it."""
    damage(folder, LAST, "zeroed")
    folder.manifest(7).unlink()
    acts: list[Callable[[], object]] = [
        lambda: publish_log.read(folder),
        lambda: publish_log.last(folder),
        lambda: publish_log.next_run(folder),
        lambda: publish_log.append(folder, Entry(8, {0: 90}, {})),
        lambda: publish_log.repair(folder, newest_of_several=True),
    ]
    for act in acts:
        with pytest.raises(BatchError, match=r"Entry 4 of the publish log in .* is damaged.*from a backup"):
            act()


def test_damaged_manifest_is_no_source_for_an_entry(folder: BatchFolder) -> None:
    damage(folder, LAST, "zeroed")
    folder.manifest(7).write_bytes(flip(folder.manifest(7).read_bytes()))
    with pytest.raises(BatchError, match="no manifest of a run after run 4"):
        publish_log.read(folder)


def test_of_several_runs_that_may_be_meant_a_person_takes_the_newest(folder: BatchFolder) -> None:
    """Run 8 was killed between its manifest and its entry; then the entry of run 7 was damaged."""
    write_manifest(folder, a_manifest(8, 75))
    damage(folder, LAST, "zeroed")
    for act in (publish_log.read, publish_log.repair):
        with pytest.raises(BatchError, match=r"may be meant: 7, 8\. .*tidemark batch repair --newest --source web"):
            act(folder)
    (repair,) = publish_log.repair(folder, newest_of_several=True)
    assert (repair.number, repair.taken_from) == (LAST, "the manifest of run 8")
    assert publish_log.last(folder) == entry_of(a_manifest(8, 75))


def test_checksum_that_is_left_tells_which_of_several_runs_is_meant(folder: BatchFolder) -> None:
    write_manifest(folder, a_manifest(8, 75))
    damage(folder, LAST, "flipped")
    assert publish_log.read(folder) == LOG


def test_manifest_of_the_run_that_is_publishing_is_no_candidate(folder: BatchFolder) -> None:
    write_manifest(folder, a_manifest(8, 75))
    damage(folder, LAST, "zeroed")
    publish_log.append(folder, entry_of(a_manifest(8, 75)))
    assert publish_log.read(folder) == [*LOG, entry_of(a_manifest(8, 75))]


def test_run_whose_cut_does_not_fit_is_no_candidate(folder: BatchFolder) -> None:
    """Run 3 was refused, because run 4 had been published at a later cut; then the entry of run 4 was damaged."""
    write_manifest(folder, a_manifest(3, 15))
    damage(folder, 3, "zeroed")
    damage(folder, 4, "zeroed")
    assert publish_log.read(folder) == LOG


def test_entry_under_the_name_of_another_is_damaged(folder: BatchFolder) -> None:
    object_of(folder, 2).write_bytes(object_of(folder, 1).read_bytes())
    assert publish_log.read(folder) == LOG


def test_damaged_genesis_alone_begins_again(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path / "web")
    publish_log.begin(folder, GENESIS.catalog, 1.0)
    damage(folder, 0, "zeroed")
    assert publish_log.begin(folder, GENESIS.catalog, GENESIS.at) == GENESIS
    assert publish_log.read(folder) == [GENESIS]


# ---- the log of Tidemark 0.1 ---------------------------------------------------


def lines_of(entries: list[Entry]) -> list[bytes]:
    return [seal({"format": 1, **entry_to_json(entry)}).encode() + b"\n" for entry in entries]


@pytest.fixture
def old(tmp_path: Path) -> BatchFolder:
    return fill_old(BatchFolder(tmp_path / "old" / "web"))


def fill_old(folder: BatchFolder, lines: list[bytes] | None = None) -> BatchFolder:
    for manifest in MANIFESTS:
        write_manifest(folder, manifest)
    folder.publish_log.write_bytes(b"".join(lines_of(LOG) if lines is None else lines))
    return folder


def test_old_log_is_read_and_reading_changes_nothing(old: BatchFolder) -> None:
    assert publish_log.read(old) == LOG
    assert publish_log.last(old) == publish_log.served(old) == LOG[-1]
    assert publish_log.find(old, 4) == LOG[3]
    assert publish_log.stamp(old) is not None
    assert not (old.root / "publish").exists()


def test_first_writer_moves_the_old_log_into_objects(old: BatchFolder) -> None:
    before = publish_log.stamp(old)
    assert publish_log.begin(old, {"other": "00"}, 9.0) == GENESIS
    assert not old.publish_log.exists()
    assert publish_log.read(old) == LOG
    assert publish_log.stamp(old) not in (before, None)
    with pytest.raises(RunRefused):
        publish_log.append(old, LOG[-1])
    publish_log.append(old, Entry(8, {0: 80, 1: 3}, {}))
    assert publish_log.last(old).run == 8


MIGRATE = """
import pathlib, sys
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
publish_log.begin(BatchFolder(pathlib.Path(sys.argv[1])), {}, 9.0)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("point", "time"),
    [("publish_log.between_entries", time) for time in (1, 2, 5)]
    + [("store.before_link", 3), ("store.after_link", 3), ("store.before_link", 1)],
)
def test_migration_killed_at_any_point_loses_nothing(old: BatchFolder, tmp_path: Path, point: str, time: int) -> None:
    armed = tmp_path / "armed"
    armed.mkdir()
    (armed / point).write_text(str(time))
    killed = subprocess.run(
        [sys.executable, "-c", MIGRATE, str(old.root)], env={**os.environ, VARIABLE: str(armed)}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert publish_log.read(old) == LOG
    assert publish_log.last(old) == LOG[-1]
    publish_log.append(old, Entry(8, {0: 80, 1: 3}, {}))
    assert publish_log.read(old) == [*LOG, Entry(8, {0: 80, 1: 3}, {})]
    assert not old.publish_log.exists()


def test_many_writers_migrate_at_once_and_the_log_takes_an_ordered_few(old: BatchFolder) -> None:
    damaged = old.publish_log.read_bytes().replace(b'"run":4', b'"run":5')
    old.publish_log.write_bytes(damaged)

    def write(run: int) -> bool:
        publish_log.begin(old, {}, 9.0)
        try:
            publish_log.append(old, Entry(run, {0: 80 + run, 1: 3}, {}))
        except RunRefused:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(write, range(8, 24)))
    found = publish_log.read(old)
    assert found[: len(LOG)] == LOG
    assert [each.run for each in found] == sorted({each.run for each in found})
    assert len(found) == len(LOG) + sum(taken)
    assert found[-1].run == 23


def test_old_log_cut_at_any_byte_has_exactly_the_lines_that_are_whole(tmp_path: Path) -> None:
    """A crash while it was written left any beginning of the line, or the line with blocks that were never written."""
    lines = lines_of(LOG[:2])
    text, ends = b"".join(lines), [sum(map(len, lines[:count])) for count in range(1, 3)]
    folder = BatchFolder(tmp_path / "web")
    folder.root.mkdir()
    for length in range(len(text) + 1):
        for ballast in (b"", b"\x00" * 7, b"\x00\n") if length not in (0, *ends) else (b"",):
            folder.publish_log.write_bytes(text[:length] + ballast)
            expected = LOG[: sum(end <= length for end in ends)] or [publish_log.GENESIS]
            assert publish_log.read(folder) == expected, (length, ballast)


@pytest.mark.parametrize("how", ["torn", "zeroed", "half zeroed", "flipped", "no JSON"])
@pytest.mark.parametrize("number", range(len(LOG)))
def test_damaged_line_of_the_old_log_is_rebuilt_in_every_position(tmp_path: Path, number: int, how: str) -> None:
    lines = lines_of(LOG)
    changed = DAMAGES[how](lines[number][:-1])
    assert changed is not None
    lines[number] = changed + b"\n"
    folder = fill_old(BatchFolder(tmp_path / "web"), lines)
    expected = [LOG[0] if number else publish_log.GENESIS, *LOG[1:]]
    if number == LAST and b"\x00" in changed:
        expected = LOG[:-1]  # as a crash leaves it: this run was not published
    assert publish_log.read(folder) == expected
    publish_log.begin(folder, {}, 9.0)
    assert publish_log.read(folder) == expected
    assert not folder.publish_log.exists()


def test_two_logs_that_disagree_are_not_merged(folder: BatchFolder) -> None:
    """A version 0.1 that was started here again has published on its own."""
    folder.publish_log.write_bytes(b"".join(lines_of([GENESIS, Entry(9, {0: 1}, {})])))
    with pytest.raises(BatchError, match="disagree: two versions of Tidemark"):
        publish_log.read(folder)


def test_line_of_the_old_log_in_a_later_format_is_not_guessed_at(old: BatchFolder) -> None:
    old.publish_log.write_bytes(seal({"format": 5, "run": 0}).encode() + b"\n")
    with pytest.raises(BatchError, match=r"Line 1 of .* has format 5"):
        publish_log.read(old)


@pytest.mark.parametrize("number", range(1, len(LOG)))
def test_run_that_was_only_prepared_is_never_published_by_a_repair(folder: BatchFolder, number: int) -> None:
    """Also where its manifest alone is left."""
    for manifest in (a_manifest(3, 30), a_manifest(5, 50), a_manifest(9, 90)):
        write_manifest(folder, replace(manifest, is_prepared=True))
    damage(folder, number, "zeroed")
    assert publish_log.read(folder) == LOG
    assert [(each.number, each.entry) for each in publish_log.repair(folder)] == [(number, LOG[number])]


def test_manifest_of_a_run_that_is_published_says_nothing_of_preparing() -> None:
    """An older Tidemark refuses names that it does not know."""
    assert "is_prepared" not in a_manifest(1, 10).to_json()
    prepared = replace(a_manifest(1, 10), is_prepared=True)
    assert from_json(prepared.to_json()) == prepared
