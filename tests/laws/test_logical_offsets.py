"""Logical offsets: whatever becomes of a source's Kafka, no two records share an offset, and cuts only grow."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master_dataset.cut import OffsetRange, count_between, is_below, join, ranges
from master_dataset.kafka.offset_base import OffsetBase, is_above, next_base, to_kafka, to_logical
from master_dataset.kafka.positions import PartitionsDiffer, Positions, check_positions, logical_positions
from master_dataset.table.coverage import Coverage, Removed, coverage_from_json, follow
from master_dataset.table.proofs import Kind, Proof, proof_from_json
from master_dataset.table.rebase import (
    Compared,
    MixedRecords,
    NothingToRebase,
    check_is_needed,
    plan_rebase,
)
from views.source import Source

WEB = Source("web", fields="event_id string, event_time timestamp", partitions=2)
cuts = st.dictionaries(st.integers(0, 3), st.integers(0, 10**12), max_size=4)


@given(base=cuts, cut=cuts)
def test_translation_has_an_inverse(base: dict[int, int], cut: dict[int, int]) -> None:
    assert to_kafka(base, to_logical(base, cut)) == cut
    assert to_logical(base, to_kafka(base, cut)) == cut


@given(old=cuts, held=cuts, floor=cuts, begin=cuts)
def test_a_new_base_begins_above_everything_that_was_seen(
    old: dict[int, int], held: dict[int, int], floor: dict[int, int], begin: dict[int, int]
) -> None:
    new = next_base("id", held, floor, begin, {})
    assert is_below(join(held, floor), new.begin)
    assert to_logical(new.base, begin) == {p: new.begin[p] for p in begin}
    assert is_above(
        new, OffsetBase("before", {}, {p: min(o, held.get(p, 0)) for p, o in old.items()}) if begin else new
    )


# ---- histories -------------------------------------------------------------------


@dataclass
class History:
    """A source whose Kafka fails: the records of its topic, its table's proofs, and which record has which offset."""

    topics: int = 1
    kafka: dict[int, list[int]] = field(default_factory=lambda: {0: [], 1: []})
    """The records in Kafka, by partition; the place in the list is Kafka's offset."""
    sent: int = 0
    proofs: dict[int, Proof] = field(default_factory=dict)
    records: dict[tuple[int, int], int] = field(default_factory=dict)
    """Logical location -> the record that was archived there."""
    sealed: Coverage = field(default_factory=Coverage)
    seen: dict[int, int] = field(default_factory=dict)
    """The highest cut that a speed view reported."""

    @property
    def held(self) -> Coverage:
        return follow(self.proofs, coverage_from_json(self.sealed.to_json()))

    @property
    def positions(self) -> Positions:
        ends = {p: len(records) for p, records in self.kafka.items()}
        return Positions(f"topic {self.topics}", dict.fromkeys(ends, 0), ends)

    def send(self, partition: int, count: int) -> None:
        for _ in range(count):
            self.sent += 1
            self.kafka[partition].append(self.sent)

    def apply(self) -> None:
        """The speed layer reads all that Kafka has, if it can."""
        found = logical_positions(self.positions, self.held.offset_base)
        if self.held.offset_base.is_of(found.topic_id) and is_below(self.held.cut, found.latest):
            self.seen = join(self.seen, found.latest)

    def archive(self) -> None:
        held = self.held
        found = logical_positions(self.positions, held.offset_base)
        begin = check_positions(WEB, found, held.cut, held.topic_id)
        for each in ranges(begin, found.latest):
            for offset in range(each.start, each.end_exclusive):
                record = self.kafka[each.partition][to_kafka(held.base, {each.partition: offset})[each.partition]]
                assert (each.partition, offset) not in self.records, "two records got one offset"
                self.records[each.partition, offset] = record
        self._add(Proof(Kind.APPEND, "web", found.topic_id, begin, found.latest, base=held.base))

    def lose(self, partition: int, count: int) -> None:
        """An old backup of the broker's disk."""
        del self.kafka[partition][max(0, len(self.kafka[partition]) - count) :]

    def make_again(self) -> None:
        self.topics += 1
        self.kafka = {0: [], 1: []}

    def rebase(self) -> None:
        held, before = self.held, self.held.offset_base
        check_is_needed(WEB, held, self.positions, self.seen)
        rebase = plan_rebase(WEB, held, self.positions, self.seen, self._compared(held))
        assert is_below(self.seen, rebase.new.begin)
        assert is_above(rebase.new, before)
        self._add(rebase.proof)
        assert sum(each.size for each in rebase.lost) == count_between(held.cut, self.held.cut)

    def repair(self) -> None:
        """Some commit is repaired: nothing changes but who answers for its rows."""
        replaced = {old for proof in self.proofs.values() for old in proof.replaces}
        appends = [v for v, proof in self.proofs.items() if proof.kind == Kind.APPEND]
        old = max({*appends} - replaced, default=None)
        if old is not None:
            proof = self.proofs[old]
            self._add(replace(proof, kind=Kind.REPAIR, topic_id=self.held.topic_id, replaces=(old,), base={}))

    def seal(self) -> None:
        self.sealed, self.proofs = self.held, {}

    def _compared(self, held: Coverage) -> dict[int, Compared]:
        found = {}
        first = to_kafka(held.base, held.offset_base.logical_earliest(self.positions.earliest))
        for p, records in self.kafka.items():
            pairs = [
                (k, self.records.get((p, k + held.base.get(p, 0))) == records[k])
                for k in range(first[p], len(records))
                if (p, k + held.base.get(p, 0)) in self.records
            ]
            same = [k for k, is_same in pairs if is_same]
            other = [k for k, is_same in pairs if not is_same]
            found[p] = Compared(max(same, default=None), min(other, default=None))
        return found

    def _add(self, proof: Proof) -> None:
        cut = self.held.cut
        stored: Any = proof_from_json(proof.to_json())
        self.proofs[max(self.proofs, default=-1) + 1] = stored
        assert is_below(cut, self.held.cut), "a cut went back"
        assert self.held.is_sound


steps = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 4)),
    st.tuples(st.just("lose"), st.integers(0, 1), st.integers(1, 4)),
    st.tuples(st.sampled_from(["archive", "apply", "make_again", "repair", "seal"])),
)


@given(st.lists(steps, max_size=25))
def test_no_record_is_archived_twice_or_under_the_offset_of_another(history: list[tuple[Any, ...]]) -> None:
    place = History()
    for name, *arguments in history:
        getattr(place, name)(*arguments)
        if name in ("lose", "make_again"):  # before Kafka has passed what it lost: then nobody could tell
            with suppress(NothingToRebase):
                place.rebase()
    place.archive()
    assert len(set(place.records.values())) == len(place.records), "a record is in the table twice"


# ---- single rules ----------------------------------------------------------------


def table(cut: dict[int, int], topic_id: str = "one", **more: Any) -> Coverage:
    return Coverage(cut=cut, topic_id=topic_id, **more)


def test_a_new_topic_begins_where_the_old_one_was_seen_to_end() -> None:
    found = Positions("two", {0: 0, 1: 0}, {0: 7, 1: 0})
    rebase = plan_rebase(WEB, table({0: 10, 1: 4}), found, {0: 12}, {})
    assert rebase.new == OffsetBase("two", {0: 12, 1: 4}, {0: 12, 1: 4})
    assert rebase.lost == [OffsetRange(0, 10, 12)]


def test_offsets_that_a_new_topic_deleted_already_are_lost_too() -> None:
    found = Positions("two", {0: 3, 1: 0}, {0: 7, 1: 0})
    rebase = plan_rebase(WEB, table({0: 10, 1: 4}), found, {}, {})
    assert rebase.lost == [OffsetRange(0, 10, 13)]
    assert to_logical(rebase.new.base, {0: 3}) == {0: 13}


def test_an_old_backup_goes_on_after_the_records_that_are_archived() -> None:
    """Kafka was set back to 6, and took two more records since."""
    found = Positions("one", {0: 0, 1: 0}, {0: 8, 1: 4})
    compared = {0: Compared(5, 6), 1: Compared(3, None)}
    rebase = plan_rebase(WEB, table({0: 10, 1: 4}), found, {}, compared)
    assert (rebase.begin, rebase.new.base, rebase.lost) == ({0: 6, 1: 4}, {0: 4, 1: 0}, [])
    after = follow({1: rebase.proof}, table({0: 10, 1: 4}))
    assert check_positions(WEB, logical_positions(found, after.offset_base), after.cut, "one") == {0: 10, 1: 4}
    assert logical_positions(found, after.offset_base).earliest == {0: 10, 1: 4}, "old records are not offered again"


def test_records_whose_rows_retention_removed_are_not_archived_again() -> None:
    """Partition 1 is idle, and retention removed all its rows: none is left to compare Kafka's records with."""
    held = table({0: 10, 1: 4}, removed=Removed({0: 2, 1: 4}))
    found = Positions("one", {0: 0, 1: 0}, {0: 8, 1: 4})
    rebase = plan_rebase(WEB, held, found, {}, {0: Compared(5, 6)})
    assert (rebase.begin, rebase.new.base, rebase.lost) == ({0: 6, 1: 4}, {0: 4, 1: 0}, [])
    copied = plan_rebase(WEB, held, found._replace(topic_id="two"), {}, {0: Compared(5, 6)})
    assert copied.begin == {0: 6, 1: 4}
    other = plan_rebase(WEB, held, found._replace(topic_id="two"), {}, {})
    assert other.begin == {0: 0, 1: 0}, "a topic that has none of our records is new as a whole"


def test_kafka_that_ends_before_what_retention_removed_is_refused() -> None:
    held = table({0: 10, 1: 4}, removed=Removed({0: 9, 1: 4}))
    with pytest.raises(MixedRecords, match="retention removed"):
        plan_rebase(WEB, held, Positions("one", {0: 0, 1: 0}, {0: 5, 1: 4}), {}, {})


def test_a_topic_that_is_neither_old_nor_new_is_refused() -> None:
    found = Positions("two", {0: 0, 1: 0}, {0: 8, 1: 4})
    with pytest.raises(MixedRecords, match="Delete the topic"):
        plan_rebase(WEB, table({0: 10, 1: 4}), found, {}, {0: Compared(5, 3)})


@pytest.mark.parametrize(
    ("cut", "floor", "latest"),
    [({0: 5, 1: 5}, {}, {0: 5, 1: 9}), ({}, {}, {0: 0, 1: 0}), ({0: 5}, {0: 6}, {0: 6, 1: 0})],
)
def test_a_topic_that_lost_nothing_needs_no_rebase(
    cut: dict[int, int], floor: dict[int, int], latest: dict[int, int]
) -> None:
    found = Positions("one", {0: 0, 1: 0}, latest)
    with pytest.raises(NothingToRebase):
        check_is_needed(WEB, table(cut, "one" if cut else ""), found, floor)


def test_a_topic_with_fewer_partitions_cannot_take_over() -> None:
    with pytest.raises(PartitionsDiffer, match="Give the topic 4 partitions"):
        check_is_needed(WEB, table({0: 5, 3: 5}), Positions("two", {0: 0, 1: 0}, {0: 0, 1: 0}), {})


def test_an_append_that_no_rebase_explains_is_found() -> None:
    proofs = {
        1: Proof(Kind.APPEND, "web", "one", {0: 0}, {0: 5}),
        2: Proof(Kind.APPEND, "web", "two", {0: 5}, {0: 6}, base={0: 5}),
    }
    found = follow(proofs)
    assert (found.unrecorded, found.offset_base) == ([2], OffsetBase("two", {0: 5}, {0: 5}))
    explained = {1: proofs[1], 2: Proof(Kind.REBASE, "web", "two", {0: 5}, {0: 5}, base={0: 5}), 3: proofs[2]}
    assert follow(explained).unrecorded == []
    assert follow(explained).origin == "one"
