"""Which differences between both sides copies may explain, how far, and which they may not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_layer.consistency import late_duplicates
from batch_layer.consistency.comparison import (
    MAX_GROUPS_PER_DUPLICATE,
    ClosedRange,
    Comparison,
    Differences,
    GroupLocation,
    Judged,
    judge,
)
from batch_layer.consistency.late_duplicates import LateDuplicates, apart
from batch_layer.consistency.quarantine import Compared
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.speed_views import ALL_KEYS
from infra.settings import load_settings
from master_dataset.cut import Cut
from master_dataset.reading.read import RecordFilter
from views import in_memory, states
from views.aggregates import Average, Count, DecayedRate, Distinct, Histogram, Kurtosis, Last, Min, Sum, Trend, Variance
from views.in_memory import Event
from views.keys import pack_key
from views.source import Source
from views.view import View

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
BUCKET, HOUR = int(NOON.timestamp()), 3600
HORIZON_S = 100
SOURCE = Source("taps", fields="event_id string, event_time timestamp, card string, cents int, ms double")
TRIES = View("tries", source=SOURCE, grain="1h", keys={"card": "card"}, answers={"attempts": Count()})
ANSWERS = {
    "attempts": Count(), "dear": Count(where="cents > 1"), "spent": Sum("cents"), "waited": Sum("ms"),
    "mean": Average("cents"), "spread": Variance("cents"), "spread_ms": Variance("ms"),
    "tails": Kurtosis("cents"), "tails_ms": Kurtosis("ms"),
    "slope": Trend("cents"), "slope_ms": Trend("ms"), "rate": DecayedRate(), "last": Last("cents"),
    "bars": Histogram("cents", bounds=(0, 2)), "least": Min("cents"), "kinds": Distinct("cents", exact=True),
}  # fmt: skip
SPENT = View("spent", source=SOURCE, grain="1h", keys={"card": "card"}, where="cents != 3", answers=ANSWERS)
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")),
        ("event_id", pa.string()), ("event_time", pa.timestamp("us", "UTC")), ("invalid", pa.string()),
        ("event", pa.struct([("card", pa.string()), ("cents", pa.int32()), ("ms", pa.float64())])),
    ]
)  # fmt: skip


class Row(NamedTuple):
    """A record of the master dataset; `at`: when Kafka got it, in seconds; `hour`: which bucket it is in."""

    partition: int
    offset: int
    event_id: str
    card: str
    cents: int = 1
    at: int = 0
    hour: int = 0

    @property
    def event(self) -> Event:
        fields = {"card": self.card, "cents": self.cents, "ms": self.cents / 10}
        return Event(self.partition, self.offset, self.event_id, NOON + timedelta(hours=self.hour), fields)


BEFORE = (Row(0, 0, "old", "a"), Row(0, 1, "older", "b"))
SINCE = (Row(0, 2, "new", "c"), Row(0, 3, "newer", "d"))
START: Cut = {0: 2, 1: 0}


def end_of(rows: Iterable[Row]) -> Cut:
    end: dict[int, int] = {}
    for row in rows:
        end[row.partition] = max(end.get(row.partition, 0), row.offset + 1)
    return end


def hold(patch: pytest.MonkeyPatch, rows: Sequence[Row]) -> None:
    """Let the master dataset hold these."""
    listed = [
        {**row.event.__dict__, "event": row.event.fields, "timestamp": NOON + timedelta(seconds=row.at)} for row in rows
    ]
    table = pa.Table.from_pylist(listed, SCHEMA)

    def read(_table: Path, wanted: RecordFilter, columns: list[str]) -> Iterator[pa.RecordBatch]:
        yield from table.filter(wanted.filter()).select(columns).to_batches()

    patch.setattr(late_duplicates, "read_records", read)


def late(patch: pytest.MonkeyPatch, *more: Row, buckets: Iterable[int] = (BUCKET,), most: int = 100) -> LateDuplicates:
    rows = (*BEFORE, *SINCE, *more)
    hold(patch, rows)
    settings = load_settings(consistency_events=most, speed_dedup_horizon_s=HORIZON_S)
    return LateDuplicates.read(settings, TRIES, Path("unused"), START, end_of(rows), set(buckets))


def excuses(found: LateDuplicates, card: str | None, by: int, bucket: int = BUCKET) -> bool:
    """Whether the speed side may count so many attempts more of a card than there were; None: of all."""
    off = {"attempts": apart(TRIES.algebras["attempts"], 10 + by, 10)}
    return found.excuses(bucket, None if card is None else pack_key((card,)), off)


def reach(found: LateDuplicates, card: str | None) -> list[int]:
    return [by for by in range(-4, 5) if by and excuses(found, card, by)]


def test_a_duplicate_of_a_removed_event_may_have_been_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The master dataset does not hold the first one any more; the foundation knows its id."""
    again = Row(0, 4, "gone", "c")
    assert reach(late(monkeypatch, again), "c") == []
    monkeypatch.setattr(late_duplicates, "removed_ids", lambda _folder, _table, ids: {*ids} & {"gone"})
    assert reach(late(monkeypatch, again), "c") == [1]
    assert reach(late(monkeypatch, again), "a") == []


# ---- which copies, and how far -------------------------------------------------


LATE = HORIZON_S + 1


@pytest.mark.parametrize(
    ("more", "of_each"),
    [
        ([], {}),
        ([Row(0, 4, "new", "c", at=HORIZON_S)], {}),  # known as a copy
        ([Row(0, 4, "new", "c", at=LATE)], {"c": [1], None: [1]}),
        ([Row(0, 4, "new", "c", at=LATE), Row(0, 5, "new", "c", at=LATE)], {"c": [1, 2], None: [1, 2]}),
        ([Row(0, 4, "old", "a", at=LATE), Row(0, 5, "older", "b", at=LATE)], {"a": [1], "b": [1], None: [1, 2]}),
        ([Row(1, 0, "old", "a")], {}),  # the same elsewhere: counts once, wherever
        ([Row(1, 0, "new", "d")], {"c": [-1], "d": [1], None: [1]}),  # says something else
        ([Row(1, 0, "old", "d")], {"d": [1], None: [1]}),
    ],
)
def test_a_group_is_excused_as_far_as_its_late_copies_reach(
    monkeypatch: pytest.MonkeyPatch, more: list[Row], of_each: dict[str | None, list[int]]
) -> None:
    found = late(monkeypatch, *more)
    assert {card: reach(found, card) for card in ("a", "b", "c", "d", None) if reach(found, card)} == of_each


def test_a_copy_that_is_lower_than_the_event_before_takes_it_from_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    hold(monkeypatch, rows := [Row(1, 0, "old", "a"), Row(0, 0, "old", "d")])
    settings = load_settings(speed_dedup_horizon_s=HORIZON_S)
    found = LateDuplicates.read(settings, TRIES, Path("unused"), {0: 0, 1: 1}, end_of(rows), {BUCKET})
    assert reach(found, "a") == [1], "the run before had it, though no event of this group came since"
    assert -1 in reach(found, "d")
    assert -2 not in reach(found, "d")


# ---- of many events, some buckets ----------------------------------------------


CROWD = [Row(0, number, f"id {number}", "x", hour=1) for number in range(4, 24)]


def judged(
    patch: pytest.MonkeyPatch, rows: Sequence[Row], cards: Iterable[tuple[str, int]], most: int, copies: int | None
) -> Judged:
    """Of groups (card, hour), of each of which the speed side counts one attempt too many."""
    hold(patch, rows)
    found = Differences(TRIES)
    for card, hour in cards:
        said, true = (states.pack(TRIES.algebras, {"attempts": count}) for count in (2, 1))
        found.check(GroupLocation(BUCKET + hour * HOUR, pack_key((card,))), [said], [true])
    settings = load_settings(consistency_events=most, speed_dedup_horizon_s=HORIZON_S)
    return judge(settings, found, START, end_of(rows), copies)


@pytest.mark.parametrize(
    ("most", "copies", "expected"),
    [
        (100, None, (1, 2)),
        (6, None, (1, 1)),  # of the crowd nothing is known
        (6, 0, (1, 2)),  # there are no copies that could explain it
        (6, 1, (1, 1)),
        (1, None, (0, 0)),
        (1, 0, (0, 3)),
    ],
)
def test_what_was_looked_at_or_has_too_few_copies_is_wrong_however_many_events_came(
    monkeypatch: pytest.MonkeyPatch, most: int, copies: int | None, expected: tuple[int, int]
) -> None:
    rows = [*BEFORE, *SINCE, *CROWD, Row(0, 24, "new", "c", at=LATE)]
    found = judged(monkeypatch, rows, [("c", 0), ("d", 0), ("x", 1)], most, copies)
    assert found[:2] == expected
    assert bool(found.why_not_all) == (most < 100)


def test_one_copy_explains_two_groups_and_their_totals_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [(f"card {number}", 1) for number in range(MAX_GROUPS_PER_DUPLICATE + 1)]
    rows = [*BEFORE, *SINCE, *CROWD]
    assert MAX_GROUPS_PER_DUPLICATE == 4
    assert judged(monkeypatch, rows, cards[1:], 1, 1).wrong == 0
    assert judged(monkeypatch, rows, cards, 1, 1).wrong == 1


def test_what_is_wrong_in_any_case_sets_aside_though_not_all_is_explained() -> None:
    found = Compared("tries", "hash", 0, 1, 10, 10, mismatched=3, excused=1, not_explained="too many events")
    assert not found.is_above(0)
    assert replace(found, wrong=1).is_above(0)
    assert not replace(found, wrong=1).is_above(0.1)
    assert "1 wrong in any case" in replace(found, wrong=1).in_words


def test_copies_that_the_run_found_are_counted_where_they_are_all_since_the_run_before(tmp_path: Path) -> None:
    folder = BatchFolder.of(load_settings(home=tmp_path), "taps")
    publish_log.begin(folder, {}, 0.0)
    stretch = ClosedRange(publish_log.last(folder), (), "made")
    comparison = Comparison(load_settings(home=tmp_path), folder, None)
    assert comparison._duplicates(7, stretch) is None, "nobody looked"
    (folder.ids / "00000007" / "hashes").mkdir(parents=True)
    assert comparison._duplicates(7, stretch) == 0
    (folder.ids / "00000007" / "copies").mkdir()
    pq.write_table(pa.table({"partition": [0, 0], "offset": [4, 5]}), folder.ids / "00000007/copies/part-0.parquet")
    assert comparison._duplicates(7, stretch) == 2
    assert comparison._duplicates(7, ClosedRange(replace(stretch.before, run=3), (), "made")) is None, (
        "of another stretch"
    )


def test_events_before_in_a_bucket_are_known_by_copies_that_came_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row(1, 0, "old", "a"), Row(0, 0, "old", "d", hour=1), *CROWD]
    hold(monkeypatch, rows)
    settings = load_settings(consistency_events=6, speed_dedup_horizon_s=HORIZON_S)
    found = LateDuplicates.read(settings, TRIES, Path("unused"), {1: 1}, end_of(rows), {BUCKET, BUCKET + HOUR})
    assert found.unread == {BUCKET + HOUR}
    assert reach(found, "a") == [1]


def test_state_that_cannot_be_read_is_no_copys_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    hold(monkeypatch, rows := [*BEFORE, *SINCE, Row(0, 4, "new", "c", at=LATE)])
    found = Differences(TRIES)
    found.check(GroupLocation(BUCKET, pack_key(("c",))), [b"torn"], [states.pack(TRIES.algebras, {"attempts": 1})])
    settings = load_settings(speed_dedup_horizon_s=HORIZON_S)
    assert judge(settings, found, START, end_of(rows)) == (0, 1, "")


# ---- a right speed side --------------------------------------------------------


class Sent(NamedTuple):
    """What a record is made of, in the order in which the speed side gets them."""

    partition: int
    number: int
    card: str
    cents: int
    hour: int
    pause_s: int
    is_forgotten: bool
    """Whether marks that may be forgotten are: a slice of the horizon goes as a whole."""


SENT = st.builds(
    Sent, st.integers(0, 2), st.integers(0, 5), st.sampled_from("ab"), st.integers(-1, 3), st.integers(0, 1),
    st.sampled_from([0, 1, HORIZON_S // 2, LATE]), st.booleans(),
)  # fmt: skip


def rows_of(sent: list[Sent]) -> list[Row]:
    offsets, at, rows = [0, 0, 0], 0, []
    for each in sent:
        at += each.pause_s
        row = Row(each.partition, offsets[each.partition], f"{each.number}", each.card, each.cents, at, each.hour)
        offsets[each.partition] += 1
        rows.append(row)
    return rows


def counted(sent: list[Sent], rows: list[Row]) -> list[bool]:
    """Which of them a right speed side counts, one after the other."""
    found: list[bool] = []
    for place, (each, row) in enumerate(zip(sent, rows, strict=True)):
        known = [
            old.at for old, is_in in zip(rows[:place], found, strict=True) if is_in and old.event_id == row.event_id
        ]
        found.append(not any(row.at - at <= HORIZON_S or not each.is_forgotten for at in known))
    return found


def places(*parts: Iterable[Row]) -> dict[GroupLocation, dict[str, Any]]:
    groups = reduce(
        lambda left, right: in_memory.merge(SPENT, left, right),
        [in_memory.fold(SPENT, [row.event for row in part]) for part in parts],
    )
    found = {GroupLocation(micros // 10**6, pack_key(key)): state for (micros, key), state in groups.items()}
    for place, state in list(found.items()):
        total = GroupLocation(place.bucket, ALL_KEYS, is_total=True)
        found[total] = states.merge(SPENT.algebras, found[total], state) if total in found else state
    return found


@given(st.lists(SENT, max_size=14), st.integers(0, 14), st.sampled_from([100, 5, 1]))
def test_a_right_speed_side_is_never_found_wrong(sent: list[Sent], cut: int, most: int) -> None:
    rows = rows_of(sent)
    since = [row for row, is_in in list(zip(rows, counted(sent, rows), strict=True))[cut:] if is_in]
    said = places(first_of(rows[:cut]), since)
    true = places(first_of(rows))
    differences = Differences(SPENT)
    for place in said.keys() | true.keys():
        packed = [[states.pack(SPENT.algebras, side[place])] if place in side else [] for side in (said, true)]
        differences.check(place, *packed)
    settings = load_settings(consistency_events=most, speed_dedup_horizon_s=HORIZON_S)
    copies = len(rows) - len(first_of(rows))
    with pytest.MonkeyPatch.context() as patch:
        hold(patch, rows)
        found = judge(settings, differences, end_of(rows[:cut]), end_of(rows), copies)
    assert found.wrong == 0, differences.examples()


def first_of(rows: list[Row]) -> list[Row]:
    """What a batch run counts."""
    first = {(event.partition, event.offset) for event in in_memory.counted(row.event for row in rows)}
    return [row for row in rows if row[:2] in first]
