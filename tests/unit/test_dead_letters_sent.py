"""How far dead letters were sent: whatever a crash or the disk does to the note, none is passed over."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master_dataset.dead_letters.letters import letter_id
from master_dataset.dead_letters.sent import NONE, Sent, note_sent, read_sent, sent_file
from master_dataset.table.digest import digest_of

PARTS = st.none() | st.binary(max_size=3)
HEADERS = st.lists(st.tuples(st.text("ab:-1", max_size=3), PARTS), max_size=3)
LETTERS = st.tuples(PARTS, PARTS, HEADERS)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    sent_file(tmp_path / "web").parent.mkdir()
    return tmp_path / "web"


def test_the_last_note_counts(table: Path) -> None:
    assert read_sent(table) == NONE
    for sent in (Sent(7, 3), Sent(12, 40)):
        note_sent(table, sent)
        assert read_sent(table) == sent


def test_the_note_of_0_1_0_is_read(table: Path) -> None:
    """It says nothing about the topic: that is searched from its beginning."""
    sent_file(table).write_text(f"12 {digest_of('12')}\n")
    assert read_sent(table) == Sent(12, 0)


@pytest.mark.parametrize("damage", [b"", b"12", b"92 40 %s", b"12 41 %s", b"12 %s", b"\xff\xfe", b"-3 40 %s", b"%s"])
def test_a_note_that_the_disk_changed_is_none(table: Path, damage: bytes) -> None:
    note_sent(table, Sent(12, 40))
    digest = sent_file(table).read_bytes().split()[2]
    sent_file(table).write_bytes(damage.replace(b"%s", digest))
    assert read_sent(table) == NONE


@given(LETTERS, LETTERS)
def test_two_letters_have_one_id_only_if_they_are_the_same(
    one: tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]],
    other: tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]],
) -> None:
    assert (letter_id(*one) == letter_id(*other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((b"ab", b"c", ()), (b"a", b"bc", ())),
        ((None, b"", ()), (b"", None, ())),
        ((None, None, (("a", None),)), (None, None, (("a", b""),))),
        ((None, None, (("a", b"b"),)), (None, None, (("ab", b""),))),
        ((None, None, (("a", b"1"), ("b", b"2"))), (None, None, (("b", b"2"), ("a", b"1")))),
        ((b"1:", b"", ()), (b"1", b":", ())),
    ],
)
def test_no_byte_moves_from_one_part_of_a_letter_to_another(one: tuple, other: tuple) -> None:  # type: ignore[type-arg]
    assert letter_id(*one) != letter_id(*other)
