"""Which files a compaction merges, and which files it removes when."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from master_dataset.table import coverage
from master_dataset.table.checks.fsck import TableDamaged, Trouble, quick_check
from master_dataset.table.compaction import MAX_FILES, choose, remove_replaced
from master_dataset.table.delta_log import TableFile
from master_dataset.table.proofs import Kind, Proof
from tests.hand_made_table import Table, append, repaired

MB = 2**20


def files(*sizes: int) -> list[TableFile]:
    return [TableFile(f"f{number}", size, 1, number) for number, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        ([], []),
        ([5], [5]),
        ([5, 5, 5], [5, 5, 5]),
        ([9, 5, 5], [9, 5, 5]),  # in the order of their commits
        ([5, 5, 11], [5, 5]),  # one that is larger than the rest together waits for more
        ([5, 5, 10, 20, 41], [5, 5, 10, 20]),
        ([60, 60, 60], [60]),  # two of them are more than a file may be
        ([100, 100], []),
    ],
)
def test_files_are_merged_with_files_of_about_their_size(sizes: list[int], chosen: list[int]) -> None:
    assert [file.size for file in choose(files(*sizes), 100)] == chosen


def test_so_many_files_at_most_are_merged_at_once() -> None:
    assert len(choose(files(*[1] * (2 * MAX_FILES)), 256 * MB)) == MAX_FILES


def test_many_commits_leave_few_files_and_write_each_record_few_times() -> None:
    """Small commits, merged from 500 files on."""
    live, written, added = files(), 0, 0
    for version in range(40_000):
        live.append(TableFile(f"f{version}", 20_000, 1, version))
        added += 20_000
        if version % 100 == 0:
            while len(chosen := choose(live, 256 * MB)) >= 500:
                total = sum(file.size for file in chosen)
                gone = set(chosen)
                live = [file for file in live if file not in gone]
                live.append(TableFile(f"c{version}", total, 1, version))
                written += total
    assert len(live) < 700
    assert written < 10 * added


HOUR_S = 3600


def ago_ms(hours: float) -> int:
    return round((time.time() - hours * HOUR_S) * 1000)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Six commits, merged three times, of which one was undone, and a file that a repair replaced."""
    made = Table(tmp_path / "web")
    for version, name in enumerate("abcdef", 1):
        made.commit(version, append(10 * version - 10, 10 * version), [name])
    made.commit(7, Proof(Kind.COMPACT, rows=20), ["k"], ["a", "b"], at_ms=ago_ms(50))
    made.commit(8, Proof(Kind.COMPACT, rows=20), ["l"], ["c", "d"], at_ms=ago_ms(40))
    made.commit(9, repaired(40, 50, 5), ["r"], ["e"], at_ms=ago_ms(99))
    made.commit(10, Proof(Kind.COMPACT, rows=20), ["m"], ["r", "f"], at_ms=ago_ms(90))
    made.commit(11, Proof(Kind.UNCOMPACT, replaces=(10,)), [], ["m"], at_ms=ago_ms(80))
    actions = made.log_file(11).read_text() + "".join(
        f'{{"add": {{"path": "{name}", "size": 4, "stats": "{{\\"numRecords\\": 10}}"}}}}\n' for name in "rf"
    )
    made.log_file(11).write_text(actions)
    (made.path / ".a.crc").write_bytes(b"x")
    assert quick_check(made.path) == []
    return made


def there(table: Table) -> str:
    return "".join(sorted(path.name for path in table.path.iterdir() if path.is_file()))


def test_what_was_merged_long_ago_is_removed_and_nothing_else(table: Table) -> None:
    held = coverage.of(table.path)
    assert remove_replaced(table.path, 48 * HOUR_S) == 2
    assert there(table) == "cdefklmr", "c and d are needed for a while, e and m are those of repairs"
    assert remove_replaced(table.path, 48 * HOUR_S) == 0
    assert remove_replaced(table.path, HOUR_S) == 2
    assert there(table) == "efklmr"
    assert quick_check(table.path) == []
    assert coverage.of(table.path) == held


def test_while_a_table_is_damaged_nothing_is_removed(table: Table) -> None:
    (table.path / "k").unlink()
    with pytest.raises(TableDamaged):
        remove_replaced(table.path, 48 * HOUR_S)
    assert there(table) == ".a.crcabcdeflmr"
    assert table.troubles() == [Trouble.MISSING_FILE]


def test_a_compaction_of_an_unknown_time_is_never_old(tmp_path: Path) -> None:
    made = Table(tmp_path / "web")
    made.commit(1, append(0, 10), ["a"])
    made.commit(2, Proof(Kind.COMPACT, rows=10), ["k"], ["a"], at_ms=0)
    assert remove_replaced(made.path, 0) == 0
