"""`tidemark verify`: what it says of a comparison, and how it exits."""

from __future__ import annotations

import pytest

from batch_layer.consistency import Compared
from serving_layer.verify_commands import _exit_code, _row

EQUAL = Compared("sales", "hash", 0, 1, 10, 10)
WRONG = Compared("sales", "hash", 0, 1, 10, 10, mismatched=1)
UNKNOWN = Compared("sales", "hash", 0, 1, why_not="there is no speed side")
UNEXPLAINED = Compared("sales", "hash", 0, 1, 10, 10, mismatched=1, not_explained="too many events")


@pytest.mark.parametrize(
    ("found", "threshold", "code"),
    [
        ([EQUAL], 0.0, 0),
        ([EQUAL, UNKNOWN], 0.0, 0),
        ([UNKNOWN, UNKNOWN], 0.0, 3),
        ([UNKNOWN, WRONG], 0.0, 1),
        ([WRONG], 0.5, 0),
        ([UNEXPLAINED], 0.0, 0),
        ([], 0.0, 0),
    ],
)
def test_exit_code_tells_differences_from_nothing_compared(found: list[Compared], threshold: float, code: int) -> None:
    assert _exit_code([_row(each, threshold)["result"] for each in found]) == code


def test_what_is_not_explained_is_not_called_equal() -> None:
    assert _row(UNEXPLAINED, 0.0)["result"] == "not explained"
