"""`tidemark verify`: what it says of a comparison, and how it exits."""

from __future__ import annotations

import pytest

from batch_layer.consistency.quarantine import Compared
from serving_layer.verification.verify import JOINS
from tidemark.commands.verify import _exit_code, _row, _unknown

EQUAL = Compared("sales", "hash", 0, 1, 10, 10)
WRONG = Compared("sales", "hash", 0, 1, 10, 10, mismatched=1)
EXCUSED = Compared("sales", "hash", 0, 1, 10, 10, mismatched=1, excused=1)
UNKNOWN = Compared("sales", "hash", 0, 1, why_not="there are no speed views")
UNEXPLAINED = Compared("sales", "hash", 0, 1, 10, 10, mismatched=1, not_explained="too many events")
JOINING = Compared("sales", "hash", 0, 1, why_not=JOINS)


@pytest.mark.parametrize(
    ("found", "threshold", "code"),
    [
        ([EQUAL], 0.0, 0),
        ([EXCUSED], 0.0, 0),
        ([EQUAL, UNKNOWN], 0.0, 3),
        ([UNKNOWN, UNKNOWN], 0.0, 3),
        ([UNKNOWN, WRONG], 0.0, 1),
        ([UNEXPLAINED, WRONG], 0.0, 1),
        ([WRONG], 0.5, 0),
        ([UNEXPLAINED], 0.0, 3),
        ([EQUAL, UNEXPLAINED], 0.5, 3),
        ([EQUAL, JOINING], 0.0, 0),
        ([UNKNOWN, JOINING], 0.0, 3),
        ([JOINING, JOINING], 0.0, 3),
        ([], 0.0, 0),
    ],
)
def test_exit_code_tells_differences_and_what_is_not_known_from_success(
    found: list[Compared], threshold: float, code: int
) -> None:
    assert _exit_code([_row(each, threshold)["result"] for each in found]) == code


@pytest.mark.parametrize(
    ("found", "result"),
    [(UNEXPLAINED, "not explained"), (UNKNOWN, "not compared"), (JOINING, "no answers yet"), (WRONG, "DIFFERS")],
)
def test_what_is_not_known_to_be_equal_is_not_called_so(found: Compared, result: str) -> None:
    assert _row(found, 0.0)["result"] == result


def test_views_of_which_nothing_is_known_are_named_with_the_reason() -> None:
    assert list(_unknown([EQUAL, WRONG, UNKNOWN, UNEXPLAINED], 0.0)) == [
        "sales: not compared: there are no speed views",
        "sales: not explained: too many events",
    ]
