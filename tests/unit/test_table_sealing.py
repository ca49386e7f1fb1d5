"""Sealed segments, on tables written by hand: what is asked often costs the same after many commits as after few."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from master_dataset.table import coverage, sealing
from master_dataset.table.checks import fsck
from master_dataset.table.checks.fsck import Trouble, quick_check
from master_dataset.table.checks.void_commits import restore_log, take_out_unsynced
from master_dataset.table.delta_log import live_files, read_commits, remember, remembered_file
from master_dataset.table.digest import digest_of
from master_dataset.table.history import read_history
from master_dataset.table.ledger import ledger_file, read_ledger, read_ledger_file
from master_dataset.table.paths import own_folder
from master_dataset.table.proofs import Kind, Proof
from master_dataset.table.sealing import CannotSeal, list_checkpoints, seal, tidy, trim_log
from master_dataset.table.segments import SegmentDamaged, list_segments, read_segment, sealed_until
from master_dataset.table.summary import read_summary
from tests.hand_made_table import Table, append, repaired

STEP = 10
"""Commits between two checkpoints."""


def grow(table: Table, until: int, *, compact_every: int = 0) -> None:
    """Commits up to `until`, each of one offset and one file, with Delta's checkpoints."""
    begin = read_history(table.path).newest + 1
    at = coverage.of(table.path).cut.get(0, 0)
    for version in range(begin, until + 1):
        if compact_every and version % compact_every == 0:
            small = sorted(read_history(table.path).files.live)
            rows = sum(file.rows for file in read_history(table.path).files.live.values())
            table.commit(version, Proof(Kind.COMPACT, rows=rows), [f"c{version}"], small, at_ms=version * 1000)
        else:
            table.commit(version, append(at, at + 1), [f"f{version}"], at_ms=version * 1000)
            at += 1
        if version % STEP == 0:
            table.checkpoint(version)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table(tmp_path / "web")
    grow(made, 45)
    return made


def everything(path: Path) -> tuple[object, ...]:
    """What readers ask, with all that was ever committed as the reference."""
    history = read_history(path)
    held = coverage.of_history(history)
    commits, ledger = read_commits(path), read_ledger(path)
    assert held == coverage.follow(coverage.effective_proofs(commits, ledger))
    assert history.files.live == live_files(commits)
    return held, history.files.live, commits, ledger, history.newest


# ---- what is sealed ------------------------------------------------------------------


def test_a_reader_of_new_records_opens_no_file_of_older_commits(tmp_path: Path) -> None:
    """Also once commits are sealed. A compacted file may hold any records, until it is summed up."""
    table = Table(tmp_path / "web")
    grow(table, 33)
    table.commit(34, Proof(Kind.COMPACT, rows=2), ["c34"], ["f32", "f33"], at_ms=34_000)
    table.commit(35, append(33, 34), ["f35"], at_ms=35_000)
    for is_sealed in (False, True):
        if is_sealed:
            tidy(table.path, segment_commits=7, grace_s=0)
            assert sealed_until(table.path) == 20
        history = read_history(table.path)
        assert sorted(coverage.files_from(history, {0: 34})) == ["c34"]
        assert sorted(coverage.files_from(history, {0: 30})) == ["c34", "f31", "f35"]
        assert sorted(coverage.files_from(history, {0: 33})) == ["c34", "f35"]
        assert sorted(coverage.files_from(history, {})) == sorted(history.files.live)
        assert {f"f{version}" for version in range(12, 32)} <= {*coverage.files_from(history, {0: 11})}


def test_sealed_commits_are_read_as_if_they_were_in_the_log(table: Table) -> None:
    before = everything(table.path)
    assert tidy(table.path, segment_commits=7, grace_s=0) == sealing.Tidied(31, 32)
    assert sealed_until(table.path) == 30, "the checkpoint before the newest"
    assert [tuple(each) for each in list_segments(table.path)] == [(0, 6), (7, 13), (14, 20), (21, 27), (28, 30)]
    assert everything(table.path) == before
    assert sorted(read_ledger_file(table.path)) == [*range(31, 46)]
    assert quick_check(table.path) == []


def test_the_log_keeps_commit_0_two_checkpoints_and_what_follows_them(table: Table) -> None:
    (table.path / "_delta_log" / f"{12:020}.crc").write_text("{}")
    (table.path / "_delta_log" / f".{12:020}.json.crc").write_text("x")
    tidy(table.path, segment_commits=7, grace_s=0)
    names = sorted(path.name for path in (table.path / "_delta_log").iterdir())
    assert [name for name in names if "checkpoint." in name] == [
        f"{30:020}.checkpoint.parquet", f"{40:020}.checkpoint.parquet",
    ]  # fmt: skip
    assert [name for name in names if name.endswith(".json")] == [f"{v:020}.json" for v in (0, *range(31, 46))]
    assert not [name for name in names if name.endswith(".crc")]


def test_nothing_leaves_the_log_while_a_reader_may_have_listed_it(table: Table) -> None:
    seal(table.path, segment_commits=7)
    assert trim_log(table.path, grace_s=60) == 0
    old = time.time() - 100
    os.utime(table.path / "_delta_log" / f"{20:020}.checkpoint.parquet", (old, old))
    trim_log(table.path, grace_s=60)
    assert list_checkpoints(table.path) == [20, 30, 40], "30 is too new to be the one that readers begin with"
    assert table.log_file(21).exists()


def test_a_commit_that_is_not_sealed_stays_in_the_log(table: Table) -> None:
    trim_log(table.path, grace_s=0)
    assert list_checkpoints(table.path) == [30, 40]
    assert all(table.log_file(version).exists() for version in range(46))


def test_few_commits_are_left_for_later(table: Table) -> None:
    assert seal(table.path, segment_commits=32) == 0
    assert sealed_until(table.path) == -1
    grow(table, 51)
    assert seal(table.path, segment_commits=32) == 41


def test_sealing_goes_on_where_it_ended(table: Table) -> None:
    tidy(table.path, segment_commits=5, grace_s=0)
    grow(table, 88, compact_every=9)
    before = everything(table.path)
    assert seal(table.path, segment_commits=5) == 40
    assert everything(table.path) == before
    assert quick_check(table.path) == []
    assert len([*(own_folder(table.path) / "summaries").iterdir()]) == 2


HARM: dict[str, Callable[[Table], object]] = {
    "a commit is torn": lambda table: table.log_file(12).write_text("{"),
    "a commit is gone": lambda table: table.log_file(12).unlink(),
    "a file is gone": lambda table: (table.path / "f12").unlink(),
    "the checkpoint has other files": lambda table: table.checkpoint(20).replace(
        table.path / "_delta_log" / f"{30:020}.checkpoint.parquet"
    ),
    "the checkpoint is torn": lambda table: (table.path / "_delta_log" / f"{30:020}.checkpoint.parquet").write_text(""),
}


@pytest.mark.parametrize("harm", HARM)
def test_what_is_damaged_is_not_sealed(table: Table, harm: str) -> None:
    HARM[harm](table)
    with pytest.raises(Exception, match=r"damaged|cannot be read|or others"):
        seal(table.path, segment_commits=7)
    assert sealed_until(table.path) == -1


def test_a_commit_that_a_disk_changed_since_it_was_cached_is_not_sealed(table: Table) -> None:
    remember(table.path, read_commits(table.path))
    path, found = table.log_file(12), table.log_file(12).stat()
    changed = path.read_text().replace('"f12"', '"f13"')
    with path.open("r+") as file:
        file.write(changed)
    lines = remembered_file(table.path).read_bytes().split(b"\n")
    now = path.stat()
    for number, line in enumerate(lines):  # as if the times had not changed either
        text = line.partition(b" ")[2].replace(str(found.st_mtime_ns).encode(), str(now.st_mtime_ns).encode())
        text = text.replace(str(found.st_ctime_ns).encode(), str(now.st_ctime_ns).encode())
        lines[number] = digest_of(text).encode() + b" " + text if text else line
    remembered_file(table.path).write_bytes(b"\n".join(lines))
    assert quick_check(table.path) == []
    with pytest.raises(CannotSeal, match="Commit 12 "):
        seal(table.path, segment_commits=50 - 20)


# ---- a crash on the way --------------------------------------------------------------


class Killed(Exception):
    pass


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    "point",
    ["seal.before_segment", "seal.after_segment", "seal.after_summary", "seal.before_removal"],
)
def test_a_crash_while_sealing_loses_nothing_and_the_next_time_finishes(
    table: Table, monkeypatch: pytest.MonkeyPatch, point: str, times: int
) -> None:
    before, passed = everything(table.path), 0

    def reach(name: str) -> None:
        nonlocal passed
        passed += name == point
        if name == point and passed == times:
            raise Killed

    monkeypatch.setattr(sealing, "reach", reach)
    try:
        tidy(table.path, segment_commits=7, grace_s=0)
    except Killed:
        assert passed == times
    assert everything(table.path) == before
    assert quick_check(table.path) == []
    monkeypatch.setattr(sealing, "reach", lambda _name: None)
    tidy(table.path, segment_commits=7, grace_s=0)
    assert everything(table.path) == before
    assert quick_check(table.path) == []
    summary = read_summary(table.path, sealed_until(table.path))
    assert summary is not None
    assert summary.last == sealed_until(table.path)
    grow(table, 99)
    tidy(table.path, segment_commits=7, grace_s=0)
    assert sealed_until(table.path) == 80
    assert min(read_ledger_file(table.path)) == 81
    assert not table.log_file(80).exists()
    assert quick_check(table.path) == []


def test_a_reader_that_is_overtaken_by_sealing_begins_again(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    from master_dataset.table import history

    before, read_log, passed = everything(table.path), history.read_log, 0

    def overtaken(path: Path, *, after: int, afresh: bool) -> object:
        nonlocal passed
        passed += 1
        if passed == 1:
            monkeypatch.setattr(history, "read_log", read_log)
            tidy(path, segment_commits=7, grace_s=0)
            monkeypatch.setattr(history, "read_log", overtaken)
        return read_log(path, after=after, afresh=afresh)

    monkeypatch.setattr(history, "read_log", overtaken)
    assert history.read_history(table.path).sealed == 30
    assert passed == 2
    assert everything(table.path) == before


# ---- older versions --------------------------------------------------------------------


def test_a_ledger_and_a_cache_of_an_older_version_are_taken_over(table: Table) -> None:
    remember(table.path, read_commits(table.path))
    lines = []
    for line in remembered_file(table.path).read_bytes().split(b"\n")[1:]:
        version, stamp, content = json.loads(line.partition(b" ")[2])
        text = json.dumps([version, stamp, content[:3]]).encode()
        lines.append(b"\n" + digest_of(text).encode() + b" " + text)
    remembered_file(table.path).write_bytes(b"".join(lines))
    plain = "".join(f"{version} {proof.to_json()}\n" for version, proof in read_ledger(table.path).items())
    ledger_file(table.path).write_text(plain)
    before = everything(table.path)
    tidy(table.path, segment_commits=7, grace_s=0)
    assert everything(table.path) == before
    assert sealed_until(table.path) == 30


# ---- what is damaged later ---------------------------------------------------------------


def test_a_changed_byte_in_a_segment_is_found_by_the_deep_check(table: Table) -> None:
    tidy(table.path, segment_commits=7, grace_s=0)
    second = list_segments(table.path)[1]
    path = own_folder(table.path) / second.name
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    assert quick_check(table.path) == [], "it does not read them"
    assert [finding.trouble for finding in fsck._check(table.path, afresh=True)] == [Trouble.DAMAGED_HISTORY]
    with pytest.raises(SegmentDamaged, match="its digest is wrong"):
        read_segment(table.path, second)


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("number", "harm", "trouble"),
    [
        (0, remove, Trouble.DAMAGED_HISTORY),
        (2, remove, Trouble.DAMAGED_HISTORY),
        (2, empty, Trouble.DAMAGED_HISTORY),
        (-1, empty, Trouble.DAMAGED_HISTORY),
        (-1, remove, Trouble.DAMAGED_SEGMENT),  # now even the position would be wrong
    ],
)
def test_a_segment_that_is_gone_or_empty_is_found_by_the_quick_check(
    table: Table, number: int, harm: Callable[[Path], None], trouble: Trouble
) -> None:
    tidy(table.path, segment_commits=7, grace_s=0)
    held = coverage.of(table.path)
    harm(own_folder(table.path) / list_segments(table.path)[number].name)
    assert table.troubles() == [trouble]
    if trouble is Trouble.DAMAGED_HISTORY:
        assert coverage.of(table.path) == held
    for path in (own_folder(table.path) / "summaries").iterdir():
        path.write_bytes(b"")
    assert table.troubles() == [Trouble.DAMAGED_SEGMENT], "without a summary it has to be read"


@pytest.mark.parametrize("harm", [lambda _: b"", lambda c: c[:-9], lambda c: c[:30] + b"9" + c[31:], lambda _: b"\n\n"])
@pytest.mark.parametrize("which", [slice(-1, None), slice(None)])
def test_without_a_sound_summary_the_segments_are_read(
    table: Table, harm: Callable[[bytes], bytes], which: slice
) -> None:
    tidy(table.path, segment_commits=7, grace_s=0)
    grow(table, 70)
    tidy(table.path, segment_commits=7, grace_s=0)
    before = everything(table.path)
    for path in sorted((own_folder(table.path) / "summaries").iterdir())[which]:
        path.write_bytes(harm(path.read_bytes()))
    assert everything(table.path) == before
    assert quick_check(table.path) == []


@pytest.mark.parametrize("heal", [restore_log, take_out_unsynced])
def test_commits_come_back_into_the_log_where_delta_has_lost_its_checkpoints(
    table: Table, heal: Callable[[Path], list[str]]
) -> None:
    before = {version: table.log_file(version).read_bytes() for version in range(46)}
    tidy(table.path, segment_commits=7, grace_s=0)
    for path in [*(table.path / "_delta_log").glob("*checkpoint*")]:
        path.unlink()
    assert table.troubles() == [Trouble.MISSING_CHECKPOINT]
    assert heal(table.path) == [f"{version:020}.json" for version in range(1, 31)]
    assert {version: table.log_file(version).read_bytes() for version in range(46)} == before
    assert table.troubles() == []


def test_one_checkpoint_of_two_is_enough(table: Table) -> None:
    tidy(table.path, segment_commits=7, grace_s=0)
    (table.path / "_delta_log" / f"{40:020}.checkpoint.parquet").write_bytes(b"PAR1")
    assert table.troubles() == [Trouble.CORRUPT_CHECKPOINT]
    taken = take_out_unsynced(table.path)
    assert taken == [f"{40:020}.checkpoint.parquet"]
    assert table.troubles() == []


# ---- repairs of what is sealed -------------------------------------------------------------


def test_a_sealed_commit_can_be_repaired(table: Table) -> None:
    tidy(table.path, segment_commits=7, grace_s=0)
    (table.path / "f12").unlink()
    assert table.troubles() == [Trouble.MISSING_FILE]
    assert table.to_restore() == [12]
    table.commit(46, repaired(11, 12, 12, rows=0, lost=(coverage.OffsetRange(0, 11, 12),)), [], ["f12"])
    held = coverage.of(table.path)
    assert (held.rows, held.lost, held.last_repair, held.is_sound) == (44, [coverage.OffsetRange(0, 11, 12)], 46, True)
    assert table.troubles() == [Trouble.LOST]
    everything(table.path)
    grow(table, 75)
    tidy(table.path, segment_commits=7, grace_s=0)
    assert sealed_until(table.path) == 60
    everything(table.path)
    table.commit(76, repaired(11, 12, 46, rows=1), ["g12"])
    everything(table.path)
    assert coverage.of(table.path).lost == []
    assert table.troubles() == []


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_history_is_the_same_sealed_and_not(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    table = Table(tmp_path_factory.mktemp("history") / "web")
    at, version = 0, 0
    steps = data.draw(st.lists(st.sampled_from(["append", "none", "compact", "repair", "lost", "seal"]), max_size=25))
    for step in [*steps, "seal"]:
        history = read_history(table.path)
        if step == "seal":
            if version > 1 and len({*list_checkpoints(table.path), version - 1, version}) > 1:
                table.checkpoint(version - 1)
                table.checkpoint(version)
                tidy(table.path, segment_commits=data.draw(st.integers(1, 4)), grace_s=0)
            continue
        version += 1
        live = history.files.live
        if step == "append":
            table.commit(version, append(at, at + 3), [f"f{version}"])
            at += 3
        elif step == "none":
            table.commit(version, Proof(Kind.APPEND, "t", "id", {0: at}, {0: at + 1}))
            at += 1
        elif step == "lost":
            table.commit(version, Proof(Kind.LOST, "t", "id", {0: at}, {0: at + 2}))
            at += 2
        elif step == "compact":
            rows = sum(file.rows for file in live.values())
            table.commit(version, Proof(Kind.COMPACT, rows=rows), [f"c{version}"] if rows else [], sorted(live))
        else:
            proofs = coverage.effective_proofs(read_commits(table.path), read_ledger(table.path))
            replaced = coverage.replacements(proofs)
            whole = [v for v, p in proofs.items() if p.kind in Kind.COVERING and v not in replaced and p.start]
            if not whole:
                version -= 1
                continue
            old = data.draw(st.sampled_from(whole))
            proof = proofs[old]
            table.commit(version, repaired(proof.start[0], proof.end[0], old, rows=0, unproved=True), [], [f"f{old}"])
        everything(table.path)
    everything(table.path)


# ---- the cost --------------------------------------------------------------------------------


_opened: list[str] | None = None


def _listen(event: str, arguments: tuple[object, ...]) -> None:
    if _opened is not None and event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        _opened.append(os.fsdecode(arguments[0]))


sys.addaudithook(_listen)


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """The files that are opened meanwhile."""
    global _opened
    _opened = []
    try:
        yield _opened
    finally:
        _opened = None


def cost(table: Table) -> dict[str, tuple[int, int]]:
    """How many files, and bytes of them, are read for a position and for the quick check."""
    found = {}
    for name, ask in {"position": coverage.of, "quick check": quick_check}.items():
        with opened_files() as opened:
            ask(table.path)
        there = [path for path in map(Path, opened) if path.is_file()]
        found[name] = (len(there), sum(path.stat().st_size for path in there))
    return found


def test_position_and_quick_check_cost_the_same_after_many_commits_as_after_few(tmp_path: Path) -> None:
    """All files of the table were compacted into one from time to time, as the archiver does."""
    costs = []
    table = Table(tmp_path / "web")
    for until in (80, 240):
        while (newest := read_history(table.path).newest) < until:
            grow(table, newest + 40, compact_every=20)
            for path in [path for path in table.path.iterdir() if path.name[0] in "cf"]:
                if path.name not in read_history(table.path).files.live:
                    path.unlink()
            tidy(table.path, segment_commits=20, grace_s=0)
        costs.append(cost(table))
    few, many = costs
    for name in few:
        assert many[name][0] <= few[name][0] + 2, f"{name}: {few} and {many}"
        assert many[name][1] <= few[name][1] * 1.2 + 500, f"{name}: {few} and {many}"
    assert len([*(table.path / "_delta_log").iterdir()]) < 80


def test_without_sealing_it_costs_more(tmp_path: Path) -> None:
    """That the test above measures what it should."""
    table = Table(tmp_path / "web")
    grow(table, 40)
    few = cost(table)
    grow(table, 120)
    assert cost(table)["position"][0] > 2 * few["position"][0]
