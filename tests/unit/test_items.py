"""Tables of counted numbers: the short form says the same as that of DataSketches, or gives way to it."""

from __future__ import annotations

import pytest

from views.aggregates.items import SHORT, Items, Room, from_bytes, merge_numbers, to_bytes, to_short_bytes
from views.errors import StateError

ROOM = Room(5_000)


@pytest.mark.parametrize(
    ("counts", "bytes_a_number"),
    [
        ({7: 1}, 3),
        ({7: 255, -7: 1}, 3),
        ({7: 256, 0: 1}, 4),
        ({7: 2**16 - 1}, 4),
        ({7: 2**16}, 6),
        ({2**15 - 1: 2**32 - 1, -(2**15) + 1: 3}, 6),
    ],
)
def test_the_short_form_has_counts_as_wide_as_the_largest(counts: dict[str | int, int], bytes_a_number: int) -> None:
    short = to_short_bytes(Items(counts), ROOM)
    assert short[0] == SHORT
    assert len(short) == 6 + bytes_a_number * len(counts)
    assert from_bytes(short, is_text=False) == Items(counts) == from_bytes(to_bytes(Items(counts), ROOM), is_text=False)


@pytest.mark.parametrize(
    "table", [Items({}), Items({7: 2**32}), Items({2**15: 1}), Items({-(2**15): 1}), Items({7: 5}, 3)]
)
def test_what_has_no_short_form_is_written_as_a_sketch(table: Items) -> None:
    assert to_short_bytes(table, ROOM) == to_bytes(table, ROOM)
    assert from_bytes(to_short_bytes(table, ROOM), is_text=False) == table


def test_both_forms_are_merged_together() -> None:
    first, second = Items({1: 300, -5: 2}), Items({1: 1, 9: 70_000})
    images = [to_short_bytes(first, ROOM), to_bytes(second, ROOM), to_short_bytes(second, ROOM)]
    merged = merge_numbers(images, ROOM)
    assert from_bytes(merged, is_text=False) == Items({-5: 2, 1: 302, 9: 140_000})


@pytest.mark.parametrize(
    "damage", [lambda image: image[:-1], lambda image: image + b"x", lambda image: b"\0Q" + image[2:]]
)
def test_a_torn_table_is_refused(damage: object) -> None:
    assert callable(damage)
    with pytest.raises(StateError, match="torn"):
        from_bytes(damage(to_short_bytes(Items({1: 300, 2: 1}), ROOM)), is_text=False)
