"""The publish log: runs in order, cuts that never go back, and what any crash leaves of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hand_off import entries, publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.checksums import seal
from hand_off.errors import BatchError, RunRefused
from hand_off.publish_log import GENESIS, Entry
from infra.failpoints import VARIABLE
from infra.store import PosixStore
from master_dataset.cut import is_below
from tests.tiers import times

CATALOG = {"page_hits": "1f" * 32}


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    return BatchFolder(tmp_path / "deep" / "web")


def entry(run: int, *offsets: int) -> Entry:
    return Entry(run, dict(enumerate(offsets)), CATALOG, 1_700_000_000.25 + run)


def fill(folder: BatchFolder, *entries: Entry) -> None:
    for each in entries:
        publish_log.append(folder, each)


def make_manifest(folder: BatchFolder, run: int) -> None:
    folder.runs.mkdir(parents=True, exist_ok=True)
    folder.manifest(run).write_text("{}")


# ---- what it holds -------------------------------------------------------------


def test_log_that_does_not_exist_is_genesis_and_reading_leaves_nothing_behind(folder: BatchFolder) -> None:
    assert publish_log.read(folder) == [GENESIS]
    assert publish_log.last(folder) == publish_log.served(folder) == GENESIS
    assert (GENESIS.run, GENESIS.cut, GENESIS.catalog) == (0, {}, {})
    assert not folder.root.exists()


def test_entries_come_back_as_they_were_appended(folder: BatchFolder) -> None:
    fill(folder, entry(1, 5, 0), entry(4, 5, 7))
    assert publish_log.read(folder) == [GENESIS, entry(1, 5, 0), entry(4, 5, 7)]
    assert publish_log.last(folder) == entry(4, 5, 7)
    assert publish_log.find(folder, 1) == entry(1, 5, 0)
    with pytest.raises(BatchError, match=r"'web' has no run 2 .*There are: 1, 4"):
        publish_log.find(folder, 2)


def test_genesis_keeps_the_views_it_was_begun_with(folder: BatchFolder) -> None:
    begun = publish_log.begin(folder, CATALOG, 3.5)
    assert begun == Entry(0, {}, CATALOG, 3.5)
    assert publish_log.begin(folder, {"other": "00"}, 9.0) == begun, "a log begins once"
    fill(folder, entry(1, 2))
    assert publish_log.read(folder) == [begun, entry(1, 2)]


@pytest.mark.parametrize(
    ("log", "refused"),
    [
        ([entry(1, 5)], entry(1, 5)),
        ([entry(3, 5)], entry(2, 9)),
        ([entry(1, 5)], entry(2, 4)),
        ([entry(1, 5, 3)], entry(2, 9, 2)),
        ([entry(1, 5, 3)], entry(2, 9)),
        ([], entry(0)),
    ],
)
def test_run_that_would_go_back_is_refused_and_told_what_the_log_has(
    folder: BatchFolder, log: list[Entry], refused: Entry
) -> None:
    fill(folder, *log)
    before = publish_log.read(folder)
    with pytest.raises(RunRefused) as error:
        publish_log.append(folder, refused)
    assert publish_log.read(folder) == before
    last = before[-1]
    said = str(error.value)
    for word in (f"Run {refused.run} ", str(refused.cut), f"run {last.run} ", str(last.cut), "tidemark batch run"):
        assert word in said
    assert (error.value.run, error.value.last_run, error.value.exit_code) == (refused.run, last.run, 1)


def test_partition_that_appears_or_a_cut_that_stays_is_taken(folder: BatchFolder) -> None:
    fill(folder, entry(1, 5), entry(2, 5), entry(3, 5, 1))
    assert publish_log.last(folder) == entry(3, 5, 1)


ENTRIES = st.lists(
    st.builds(
        entry,
        st.integers(0, 12),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    max_size=12,
)


@settings(max_examples=times(20, 500), deadline=None)
@given(wanted=ENTRIES)
def test_whatever_is_asked_runs_grow_and_cuts_never_go_back(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[Entry]
) -> None:
    folder = BatchFolder(tmp_path_factory.mktemp("batch") / "web")
    taken = [GENESIS]
    for each in wanted:
        fits = each.run > taken[-1].run and is_below(taken[-1].cut, each.cut)
        try:
            publish_log.append(folder, each)
        except RunRefused:
            assert not fits
        else:
            assert fits
            taken.append(each)
    assert publish_log.read(folder) == taken


def test_of_many_who_append_at_once_the_log_takes_an_ordered_few(folder: BatchFolder) -> None:
    def try_append(run: int) -> bool:
        try:
            publish_log.append(folder, entry(run, run))
        except RunRefused:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(try_append, [*range(1, 41), *range(1, 41)]))
    log = publish_log.read(folder)
    assert len(log) == 1 + sum(taken)
    assert [each.run for each in log] == sorted({each.run for each in log})
    assert log[-1].run == 40


# ---- crashes -------------------------------------------------------------------


APPEND = """
import pathlib, sys
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
publish_log.append(BatchFolder(pathlib.Path(sys.argv[1])), publish_log.Entry(2, {0: 6}, {}, 2.0), unpin=True)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("point", "is_published"),
    [("publish_log.before_line", False), ("store.before_sync", False), ("store.before_link", False),
     ("store.after_link", True), ("publish_log.after_line", True)],
)  # fmt: skip
def test_run_killed_while_it_publishes_is_published_whole_or_not_at_all(
    folder: BatchFolder, tmp_path: Path, point: str, is_published: bool
) -> None:
    fill(folder, entry(1, 5))
    armed = tmp_path / "armed"
    armed.mkdir()
    (armed / point).touch()
    killed = subprocess.run(
        [sys.executable, "-c", APPEND, str(folder.root)], env={**os.environ, VARIABLE: str(armed)}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    before = [GENESIS, entry(1, 5), *([Entry(2, {0: 6}, {}, 2.0, unpin=True)] if is_published else [])]
    assert publish_log.read(folder) == before
    assert publish_log.last(folder) == before[-1]
    publish_log.append(folder, entry(3, 7))
    assert publish_log.read(folder) == [*before, entry(3, 7)]


@pytest.mark.process
def test_writer_that_slept_before_its_entry_looks_again(folder: BatchFolder, tmp_path: Path) -> None:
    """It had checked its run against an older end of the log."""
    fill(folder, entry(1, 5))
    armed = tmp_path / "armed"
    armed.mkdir()
    (armed / "publish_log.before_line").write_text("stop")
    with subprocess.Popen(
        [sys.executable, "-c", APPEND, str(folder.root)],
        env={**os.environ, VARIABLE: str(armed)},
        stderr=subprocess.PIPE,
        text=True,
    ) as sleeper:
        os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
        publish_log.append(folder, entry(3, 7))
        sleeper.send_signal(signal.SIGCONT)
        _out, error = sleeper.communicate()
    assert "RunRefused: Run 2 at cut {0: 6} is not published" in error
    assert publish_log.read(folder) == [GENESIS, entry(1, 5), entry(3, 7)]


def test_entry_of_a_later_version_is_not_guessed_at(folder: BatchFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(entries, "FORMAT", 3)
        patch.setattr(entries, "READABLE", {2, 3})
        fill(folder, entry(1, 5))
    for act in (publish_log.read, publish_log.last, lambda it: fill(it, entry(2, 6))):
        with pytest.raises(BatchError, match="has format 3; this version of Tidemark reads 2"):
            act(folder)


def test_other_files_beside_the_entries_are_no_entries(folder: BatchFolder) -> None:
    fill(folder, entry(1, 5))
    for name in ("README", "00000007.json.bak", "7.json", "00000009.json.1.2.partial", ".00000009.json"):
        (folder.root / "publish" / name).write_text("x")
    assert publish_log.read(folder) == [GENESIS, entry(1, 5)]
    fill(folder, entry(2, 6))
    assert publish_log.last(folder) == entry(2, 6)


def test_newest_entry_costs_the_same_however_long_the_log_is(
    folder: BatchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder, *(entry(run, run) for run in range(1, 40)))
    opened: list[str] = []
    real = PosixStore.get
    monkeypatch.setattr(PosixStore, "get", lambda self, name: opened.append(name) or real(self, name))  # type: ignore[func-returns-value]
    assert publish_log.last(folder) == publish_log.served(folder) == entry(39, 39)
    assert opened == ["publish/00000039.json"] * 2


def test_stamp_changes_with_every_entry_and_with_nothing_else(folder: BatchFolder) -> None:
    assert publish_log.stamp(folder) is None
    known, seen = None, set()
    for run in range(1, 6):
        fill(folder, entry(run, run))
        assert publish_log.stamp(folder, known) == publish_log.stamp(folder)
        known = publish_log.stamp(folder, known)
        assert known not in seen
        seen.add(known)
        assert publish_log.stamp(folder, known) == known
    (folder.root / "publish" / "00000003.json").unlink()
    fill(folder, entry(9, 9))
    assert publish_log.stamp(folder, known) not in seen, "though an entry is missing"
    for path in (folder.root / "publish").iterdir():
        path.unlink()
    assert publish_log.stamp(folder, known) is None


def test_entry_is_on_the_disk_before_append_returns(folder: BatchFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is synced before its name, the folders above it before the first entry."""
    calls = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        calls.append("content" if path.is_file() else path.name)
        real(descriptor)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc to tell which file is synced")
    monkeypatch.setattr(os, "fsync", fsync)
    fill(folder, entry(1, 5))
    assert calls[-2:] == ["content", "publish"]
    assert calls.index("deep") < calls.index("web") < calls.index("content")


def test_entry_that_is_read_is_on_the_disk(folder: BatchFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer may have been killed before it synced; what a reader passes on must not be lost with the power."""
    fill(folder, entry(1, 5))
    for read in (publish_log.last, publish_log.read):
        synced: list[int] = []
        monkeypatch.setattr(os, "fsync", lambda descriptor, into=synced: into.append(os.fstat(descriptor).st_ino))
        read(folder)
        assert (folder.root / "publish").stat().st_ino in synced


def test_full_disk_publishes_nothing(folder: BatchFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(folder, entry(1, 5))

    def refuse(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space left"):
            publish_log.append(folder, entry(2, 6))
    assert publish_log.last(folder) == entry(1, 5)


# ---- run numbers ---------------------------------------------------------------


def test_run_numbers_are_given_out_once_also_to_many_at_once(folder: BatchFolder) -> None:
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: publish_log.next_run(folder), range(40)))
    assert sorted(numbers) == list(range(1, 41))


@pytest.mark.process
def test_run_numbers_go_on_after_a_process_that_was_killed(folder: BatchFolder) -> None:
    code = (
        "import pathlib, sys; from hand_off import publish_log; from hand_off.batch_folder import BatchFolder\n"
        "while True: print(publish_log.next_run(BatchFolder(pathlib.Path(sys.argv[1]))), flush=True)"
    )
    numbers: list[int] = []
    for count in (1, 7, 3):
        with subprocess.Popen(
            [sys.executable, "-c", code, str(folder.root)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout
            numbers += [int(process.stdout.readline()) for _ in range(count)]
            process.kill()
            numbers += [int(line) for line in process.stdout if line.endswith("\n")]
    numbers.append(publish_log.next_run(folder))
    assert numbers == sorted(set(numbers)), "a number came twice"


@pytest.mark.parametrize("damage", [None, b"", b"\x00" * 20, b'{"run":900,"sum":"0000000000000000"}', b"2", b"\xff"])
def test_lost_or_damaged_counter_goes_on_after_the_log_and_the_manifests(
    folder: BatchFolder, damage: bytes | None
) -> None:
    fill(folder, entry(6, 5))
    assert publish_log.next_run(folder) == 7
    assert publish_log.next_run(folder) == 8
    folder.counter.unlink() if damage is None else folder.counter.write_bytes(damage)
    assert publish_log.next_run(folder) == 7, "the log alone is known"
    folder.counter.unlink()
    make_manifest(folder, 11)
    make_manifest(folder, 9)
    (folder.runs / "00000099.json.1.2.partial").touch()
    assert publish_log.next_run(folder) == 12, "a run that was never published has a manifest"


def test_number_is_on_the_disk_before_it_is_given_out(folder: BatchFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any step of giving out a number, the next one is another."""
    given_out = [publish_log.next_run(folder)]
    for step in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os if step == "fsync" else Path, step, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                given_out.append(publish_log.next_run(folder))
        given_out.append(publish_log.next_run(folder))
    assert given_out == sorted(set(given_out))


# ---- what is served ------------------------------------------------------------


@pytest.fixture
def three(folder: BatchFolder) -> BatchFolder:
    fill(folder, entry(1, 5), entry(2, 6), entry(3, 7))
    for run in (1, 2, 3):
        make_manifest(folder, run)
    return folder


def test_rollback_pins_readers_and_changes_nothing_in_the_log(three: BatchFolder) -> None:
    before = publish_log.read(three)
    assert (publish_log.pinned(three), publish_log.served(three)) == (None, entry(3, 7))
    assert publish_log.serve(three, 1) == entry(1, 5)
    assert publish_log.pinned(three) == publish_log.served(three) == entry(1, 5)
    assert publish_log.last(three) == entry(3, 7)
    assert publish_log.serve(three, 2) == publish_log.served(three) == entry(2, 6)
    assert publish_log.serve(three, None) == publish_log.served(three) == entry(3, 7)
    assert publish_log.serve(three, None) == entry(3, 7), "unpinning twice is harmless"
    assert publish_log.read(three) == before


def test_new_run_frees_the_readers_only_if_it_says_so(three: BatchFolder) -> None:
    publish_log.serve(three, 1)
    publish_log.append(three, entry(4, 8))
    assert publish_log.served(three) == entry(1, 5)
    freeing = publish_log.append(three, entry(5, 8), unpin=True)
    assert publish_log.served(three) == freeing == publish_log.last(three)
    assert publish_log.pinned(three) is None
    publish_log.append(three, entry(6, 9))
    assert publish_log.served(three) == entry(6, 9), "once free, readers stay free"


def test_rollback_after_a_run_that_freed_the_readers_is_in_force(three: BatchFolder) -> None:
    publish_log.serve(three, 1)
    publish_log.append(three, entry(4, 8), unpin=True)
    publish_log.serve(three, 2)
    assert publish_log.served(three) == entry(2, 6)


@pytest.mark.parametrize(
    ("run", "words"), [(9, "never published"), (0, "was pruned"), (2, "was pruned")], ids=["unknown", "genesis", "gone"]
)
def test_run_that_cannot_be_served_is_refused(three: BatchFolder, run: int, words: str) -> None:
    three.manifest(2).unlink()
    with pytest.raises(BatchError, match=f"cannot serve run {run}: .*{words}"):
        publish_log.serve(three, run)
    assert publish_log.served(three) == entry(3, 7)


def test_pin_to_a_run_that_the_log_does_not_have_is_no_pin(three: BatchFolder, tmp_path: Path) -> None:
    publish_log.serve(three, 2)
    other = BatchFolder(tmp_path / "other")
    fill(other, entry(1, 5))
    other.serving.write_bytes(three.serving.read_bytes())
    assert publish_log.served(other) == entry(1, 5)


def test_rollback_does_not_go_to_a_run_that_is_being_pruned(three: BatchFolder) -> None:
    """Pruning has read the pin, decided, and named run 1; its manifest is still there."""
    assert publish_log.announce_drop(three, publish_log.read_pin(three), {1})
    with pytest.raises(BatchError, match="cannot serve run 1: its data was pruned"):
        publish_log.serve(three, 1)
    assert publish_log.serve(three, 2) == publish_log.served(three) == entry(2, 6)
    publish_log.serve(three, None)
    with pytest.raises(BatchError, match="was pruned"):
        publish_log.serve(three, 1)


def test_pruning_learns_of_a_rollback_that_came_while_it_decided(three: BatchFolder) -> None:
    pin = publish_log.read_pin(three)
    publish_log.serve(three, 1)
    assert not publish_log.announce_drop(three, pin, {1})
    assert publish_log.served(three) == entry(1, 5)


def test_pin_as_the_first_version_wrote_it_is_in_force(three: BatchFolder) -> None:
    three.serving.write_text(seal({"format": 1, "run": 2, "after": 3}, indent=1))
    assert publish_log.served(three) == entry(2, 6)
    assert publish_log.serve(three, None) == publish_log.served(three) == entry(3, 7)


def test_damaged_pin_is_not_taken_for_no_pin(three: BatchFolder) -> None:
    publish_log.serve(three, 1)
    three.serving.write_text(three.serving.read_text().replace('"run": 1', '"run": 2'))
    with pytest.raises(BatchError, match=r"serving\.json' is damaged.*tidemark batch rollback --latest"):
        publish_log.served(three)
    publish_log.serve(three, 2)
    assert publish_log.served(three) == entry(2, 6)
