"""Which differences between both sides copies may explain, and which they may not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from batch_layer import late_copies
from batch_layer.late_copies import LateCopies
from infra.settings import load_settings
from master_dataset.facts import Wanted
from views.aggregates import Count
from views.keys import pack_key
from views.source import Source
from views.view import View

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
BUCKET = int(NOON.timestamp())
SOURCE = Source("taps", fields="event_id string, event_time timestamp, card string")
TRIES = View("tries", source=SOURCE, grain="1h", keys={"card": "card"}, answers={"attempts": Count()})
START, END = {0: 2, 1: 0}, {0: 4, 1: 1}


class Row(NamedTuple):
    """A record of the master dataset."""

    partition: int
    offset: int
    event_id: str
    card: str


BEFORE = (Row(0, 0, "old", "a"), Row(0, 1, "older", "b"))
SINCE = (Row(0, 2, "new", "c"), Row(0, 3, "newer", "d"))
MOVED = Row(1, 0, "old", "a")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """What the master dataset holds."""
    rows: list[Row] = [*BEFORE, *SINCE]

    def read(_table: Path, wanted: Wanted, columns: list[str]) -> Iterator[pa.RecordBatch]:
        found: list[dict[str, Any]] = [
            {
                "partition": row.partition, "offset": row.offset, "timestamp": NOON + timedelta(seconds=number),
                "event_id": row.event_id, "event_time": NOON, "event": {"card": row.card},
            }
            for number, row in enumerate(rows)
            if (wanted.start or {}).get(row.partition, 0) <= row.offset < (wanted.end or {}).get(row.partition, 0)
        ]  # fmt: skip
        if found:
            yield pa.RecordBatch.from_pylist(found).select(columns)

    monkeypatch.setattr(late_copies, "read_facts", read)
    return rows


def late(**settings: Any) -> LateCopies:
    return LateCopies.read(load_settings(**settings), TRIES, Path("unused"), START, END, {BUCKET})


def excuses(found: LateCopies, card: str) -> bool:
    """Whether the speed side may hold nothing of a card."""
    return found.excuses(TRIES, BUCKET, pack_key((card,)), is_held=False)


def test_without_copies_nothing_is_excused(table: list[Row]) -> None:
    found = late()
    assert found.is_known
    assert [excuses(found, row.card) for row in table] == [False] * len(table)


def test_a_copy_elsewhere_excuses_groups_that_got_nothing_and_none_whose_events_have_no_copy(table: list[Row]) -> None:
    table.append(MOVED)
    found = late()
    assert [excuses(found, row.card) for row in BEFORE] == [True, True]
    assert [excuses(found, row.card) for row in SINCE] == [False, False]
    assert not found.excuses(TRIES, BUCKET, None, is_held=False), "nor the total that they are in"


def test_of_more_events_than_are_looked_at_those_without_a_copy_are_not_excused_either(table: list[Row]) -> None:
    del table[-1]
    found = late(consistency_events=1)
    assert found.is_known
    assert excuses(found, BEFORE[0].card)
    assert not excuses(found, SINCE[0].card)
