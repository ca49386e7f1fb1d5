"""The patterns that find decimals of unbounded cost: Java matches them without recursion, however long a text is."""

from __future__ import annotations

import re

import pytest

from views.on_spark import decimal_texts

PATTERNS = {
    name: value
    for name, value in vars(decimal_texts).items()
    if isinstance(value, str) and re.fullmatch(r"_(UP_TO_LARGE|AFTER_E|LONG_STRING|IN_STRING|LONG_TEXT)", name)
}
A_FEW = 10
REPEATED_GROUP = re.compile(r"\)(?P<times>\*|\+|\{(?P<least>[0-9]+)(?P<most>,[0-9]*)?\})(?P<possessive>\+?)")


def test_all_patterns_are_looked_at() -> None:
    assert len(PATTERNS) == 5


@pytest.mark.parametrize("name", PATTERNS)
def test_groups_that_are_repeated_often_are_possessive(name: str) -> None:
    """Java calls itself for each repetition of a group with alternatives, unless the repetition is possessive.

    A thousand repetitions end a thread with StackOverflowError before its code is compiled: one record of 6 kB stopped
    a micro-batch in a JVM that had just started.
    """
    for found in REPEATED_GROUP.finditer(PATTERNS[name]):
        is_short = found["most"] is None and found["least"] is not None and int(found["least"]) <= A_FEW
        assert found["possessive"] or is_short, f"{found[0]} in {PATTERNS[name]}"
