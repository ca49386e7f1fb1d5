"""The chain of proofs: what a table holds, and what is missing from it, read from its commits alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master_dataset.cut import OffsetRange, count_between, cut_from_json, cut_to_json, is_below, join, ranges
from master_dataset.table.coverage import effective_proofs, follow
from master_dataset.table.delta_log import Commit, TableFile, live_files, read_commit, read_commits
from master_dataset.table.ledger import append_to_ledger, complete_ledger, ledger_file, missing_from_ledger, read_ledger
from master_dataset.table.proofs import Kind, Proof, proof_from_json

cuts = st.dictionaries(st.integers(0, 5), st.integers(0, 10**12), max_size=4)
int64 = st.integers(-(2**63), 2**63 - 1)
proofs = st.builds(
    Proof,
    kind=st.sampled_from([Kind.APPEND, Kind.REPAIR, Kind.LOST, Kind.COMPACT, Kind.VOID]),
    topic=st.text(max_size=10),
    topic_id=st.text(max_size=10),
    start=cuts,
    end=cuts,
    rows=st.integers(0, 10**9),
    hash=int64,
    parsed_hash=int64,
    invalid=st.integers(0, 10**6),
    raw_bytes=st.integers(0, 10**12),
    unproved=st.booleans(),
    replaces=st.lists(st.integers(0, 1000), max_size=3).map(tuple),
)


def append(start: int, end: int, rows: int | None = None, **more: object) -> Proof:
    """Records of partition 0."""
    return Proof(Kind.APPEND, start={0: start}, end={0: end}, rows=end - start if rows is None else rows, **more)  # type: ignore[arg-type]


# ---- cuts --------------------------------------------------------------------


@given(left=cuts, right=cuts)
def test_the_join_of_two_cuts_is_the_least_above_both(left: dict[int, int], right: dict[int, int]) -> None:
    both = join(left, right)
    assert is_below(left, both)
    assert is_below(right, both)
    assert join(both, left) == both
    assert count_between(left, both) == sum(both[p] - left.get(p, 0) for p in both)


@given(cut=cuts)
def test_a_cut_survives_json(cut: dict[int, int]) -> None:
    assert cut_from_json(json.loads(json.dumps(cut_to_json(cut)))) == cut


def test_ranges_leave_out_partitions_where_nothing_lies_between() -> None:
    assert list(ranges({0: 5, 1: 7}, {0: 5, 1: 9, 2: 3})) == [OffsetRange(1, 7, 9), OffsetRange(2, 0, 3)]
    assert str(OffsetRange(1, 7, 9)) == "partition 1: 7..8"


# ---- proofs ------------------------------------------------------------------


@given(proof=proofs)
def test_a_proof_survives_the_commit_and_the_ledger(proof: Proof) -> None:
    assert proof_from_json(proof.to_json()) == proof


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "5", '{"tidemark":2}', "not json", '{"tidemark":"1"}'])
def test_user_metadata_of_others_is_not_taken_for_a_proof(text: str) -> None:
    assert proof_from_json(text) is None


@pytest.mark.parametrize("member", ["kind", "topic", "from", "to", "rows", "hash", "invalid", "replaces"])
def test_a_proof_of_ours_that_lost_a_member_is_not_taken_for_anothers(member: str) -> None:
    value = json.loads(append(0, 5).to_json())
    for broken in ({**value, member: None}, {name: value[name] for name in value if name != member}):
        if member in ("kind", "topic") and member in broken:
            continue  # of these two only the presence is looked at
        with pytest.raises(ValueError, match="members"):
            proof_from_json(json.dumps(broken))


# ---- the chain ---------------------------------------------------------------


def test_a_whole_chain_has_neither_gap_nor_overlap() -> None:
    found = follow({1: append(10, 20), 2: append(20, 25), 4: append(25, 25)})
    assert (found.cut, found.rows, found.gaps, found.overlaps) == ({0: 25}, 15, [], [])


def test_a_gap_and_an_overlap_are_named() -> None:
    found = follow({1: append(0, 10), 2: append(15, 20), 3: append(18, 30)})
    assert found.gaps == [OffsetRange(0, 10, 15)]
    assert found.overlaps == [OffsetRange(0, 18, 20)]


def test_a_repair_fills_the_gap_and_its_rows_count_instead_of_what_it_replaces() -> None:
    repair = Proof(Kind.REPAIR, start={0: 10}, end={0: 15}, rows=5, replaces=(2,))
    unknown = follow({1: append(0, 10), 3: append(15, 20), 4: repair})
    known = follow({1: append(0, 10), 2: append(10, 15), 3: append(15, 20), 4: repair})
    for found in (unknown, known):
        assert (found.cut, found.rows, found.gaps, found.overlaps) == ({0: 20}, 20, [], [])


def test_half_a_repair_leaves_the_gap_open() -> None:
    repair = Proof(Kind.REPAIR, start={0: 10}, end={0: 14}, rows=4, replaces=(2,))
    assert follow({1: append(0, 10), 3: append(15, 20), 4: repair}).gaps == [OffsetRange(0, 10, 15)]


def test_an_accepted_loss_moves_the_cut_and_is_remembered() -> None:
    lost = Proof(Kind.LOST, start={0: 10}, end={0: 30})
    found = follow({1: append(0, 10), 2: lost, 3: append(30, 31)})
    assert (found.cut, found.rows, found.gaps, found.lost) == ({0: 31}, 11, [], [OffsetRange(0, 10, 30)])


def test_compaction_changes_neither_the_cut_nor_the_rows() -> None:
    assert follow({1: append(0, 10), 2: Proof(Kind.COMPACT, rows=10)}) == follow({1: append(0, 10)})


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=12), data=st.data())
def test_any_commit_taken_out_of_a_chain_is_noticed_unless_it_was_empty(sizes: list[int], data: st.DataObject) -> None:
    chain, at = {}, 0
    for version, size in enumerate(sizes, start=1):
        chain[version] = append(at, at + size)
        at += size
    missing = data.draw(st.sampled_from(sorted(chain)))
    found = follow({version: proof for version, proof in chain.items() if version != missing})
    if sizes[missing - 1] and 1 < missing < len(sizes):
        assert found.gaps == [OffsetRange(0, chain[missing].start[0], chain[missing].end[0])]
    else:
        assert found.gaps == []  # at the ends only the ledger can tell


# ---- commits and ledger on the disk --------------------------------------------


def commit_text(proof: Proof | None, *actions: dict[str, object]) -> str:
    info: dict[str, object] = {"operation": "WRITE"}
    if proof is not None:
        info["userMetadata"] = proof.to_json()
    return "".join(json.dumps(action) + "\n" for action in ({"commitInfo": info}, *actions))


def add(path: str, rows: int) -> dict[str, object]:
    return {"add": {"path": path, "size": 7, "stats": json.dumps({"numRecords": rows})}}


def test_a_commit_is_read_with_its_proof_and_files(tmp_path: Path) -> None:
    file = tmp_path / "00000000000000000003.json"
    file.write_text(commit_text(append(0, 4), add("a%20b.parquet", 4), {"remove": {"path": "old.parquet"}}))
    found = read_commit(file)
    assert (found.version, found.proof, found.damage, found.removed) == (3, append(0, 4), "", ("old.parquet",))
    assert [(each.path, each.size, each.rows, each.version) for each in found.added] == [("a b.parquet", 7, 4, 3)]


@pytest.mark.parametrize(
    ("content", "damage"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"\x00" * 512, "torn"),
        (b'{"commitInfo":{}}\n{"add":{"path":"x","si', "torn"),
        (b'{"add":{"path":"x","size":1}}\n', "torn"),
        (b'{"commitInfo":{}}\n{"add":{"size":1}}\n', "torn"),
        (b"[1]\n", "torn"),
    ],
)
def test_a_commit_that_a_power_cut_spoiled_is_called_damaged(tmp_path: Path, content: bytes, damage: str) -> None:
    file = tmp_path / "00000000000000000003.json"
    file.write_bytes(content)
    assert damage in read_commit(file).damage


def test_live_files_are_those_added_and_not_removed() -> None:
    first = Commit(1, added=(_file("a", 1), _file("b", 1)))
    second = Commit(2, added=(_file("c", 2),), removed=("a",))
    assert sorted(live_files([first, second])) == ["b", "c"]


def test_the_ledger_survives_a_torn_last_line(tmp_path: Path) -> None:
    table = tmp_path / "web"
    append_to_ledger(table, [(1, append(0, 5)), (2, append(5, 9))])
    with ledger_file(table).open("ab") as file:
        file.write(b'3 {"tidemark":1,"ki')  # a crash in the middle of the line
    assert read_ledger(table) == {1: append(0, 5), 2: append(5, 9)}
    append_to_ledger(table, [(3, append(9, 10))])
    assert sorted(read_ledger(table)) == [1, 2, 3]


def lose_a_member(line: bytes) -> bytes:
    return line.replace(b'"rows"', b'"sows"')


def change_a_digit(line: bytes) -> bytes:
    return line.replace(b'"rows":4', b'"rows":5')


def tear_in_the_middle(line: bytes) -> bytes:
    return line[:30] + line[90:]


@pytest.mark.parametrize(
    "harm", [lose_a_member, change_a_digit, tear_in_the_middle, lambda _: b"\xff\x00", lambda _: b""]
)
def test_a_ledger_line_that_cannot_be_read_is_added_again(tmp_path: Path, harm: Callable[[bytes], bytes]) -> None:
    table = tmp_path / "web"
    (table / "_delta_log").mkdir(parents=True)
    chain = {1: append(0, 5), 2: append(5, 9), 3: append(9, 10)}
    for version, proof in chain.items():
        (table / "_delta_log" / f"{version:020}.json").write_text(commit_text(proof))
    append_to_ledger(table, chain.items())
    lines = ledger_file(table).read_bytes().splitlines()
    ledger_file(table).write_bytes(b"\n".join([lines[0], harm(lines[1]), lines[2], b""]))
    assert sorted(read_ledger(table)) == [1, 3]
    complete_ledger(table, read_commits(table))
    assert read_ledger(table) == chain


def test_lines_of_an_older_ledger_without_a_digest_are_read(tmp_path: Path) -> None:
    table = tmp_path / "web"
    append_to_ledger(table, [(1, append(0, 5))])
    with ledger_file(table).open("a") as file:
        file.write(f"2 {append(5, 9).to_json()}\n")
    append_to_ledger(table, [(3, append(9, 10))])
    assert read_ledger(table) == {1: append(0, 5), 2: append(5, 9), 3: append(9, 10)}
    assert sorted(read_ledger(table, digest_only=True)) == [1, 3]


def test_what_a_crash_kept_out_of_the_ledger_is_found() -> None:
    commits = [Commit(1, append(0, 5)), Commit(2), Commit(3, append(5, 9))]
    assert missing_from_ledger(commits, {1: append(0, 5)}) == [(3, append(5, 9))]
    assert missing_from_ledger(commits, {}) == [(1, append(0, 5)), (3, append(5, 9))]


def test_a_damaged_commit_speaks_through_the_ledger_and_a_void_one_too() -> None:
    ledger = {1: append(0, 5), 2: append(5, 9)}
    damaged = [Commit(1, append(0, 5)), Commit(2, damage="it is empty")]
    void = [Commit(1, append(0, 5)), Commit(2, Proof(Kind.VOID))]
    assert effective_proofs(damaged, ledger) == effective_proofs(void, ledger) == ledger


def _file(path: str, version: int) -> TableFile:
    return TableFile(path, 1, 1, version)
