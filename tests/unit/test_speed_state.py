"""What the speed layer says of itself: in `tidemark speed status`, and in answers."""

from __future__ import annotations

import pytest

from hand_off.lag import Lag
from hand_off.speed_views import Outcome, SpeedAnswer
from serving_layer.readers.speed import why_behind
from tidemark.commands.speed import _state

FULL = "Redis is full, so nothing was written."


@pytest.mark.parametrize(
    ("problem", "behind", "behind_s", "is_written", "expected"),
    [
        ("", 0, 0.0, True, "keeps up"),
        ("", 12, 0.3, True, "keeps up"),
        ("", 430, 300.0, True, "430 events behind"),
        ("", 430, None, True, "430 events behind"),
        ("", None, None, True, "an unknown number of events behind"),
        ("", 0, 0.0, False, "no writer"),
        ("", 7, 2.0, False, "no writer, 7 events behind"),
        (FULL, 430, 300.0, True, f"430 events behind: {FULL}"),
        (FULL, None, None, False, f"an unknown number of events behind: {FULL}"),
        (FULL, 0, 0.0, True, FULL),
    ],
)
def test_a_source_keeps_up_only_where_that_is_known(
    problem: str, behind: int | None, behind_s: float | None, is_written: bool, expected: str
) -> None:
    assert _state(problem, behind, behind_s, is_written=is_written) == expected


def answer(lag: Lag | None, problem: str = "") -> SpeedAnswer:
    return SpeedAnswer(Outcome.OK, {0: 5}, 1, lag, problem=problem)


@pytest.mark.parametrize("lag", [None, Lag(0, None), Lag(0, 0.4), Lag(12, 0.4), Lag(100_000, 3600.0)])
def test_a_writer_that_is_busy_or_has_not_reported_is_no_reason_to_be_degraded(lag: Lag | None) -> None:
    assert why_behind(answer(lag)) is None


@pytest.mark.parametrize(
    ("lag", "problem", "words"),
    [
        (Lag(430, 61.4), FULL, ["cannot go on: Redis is full", "At least 430 events", "is 61 s old"]),
        (None, FULL, ["cannot go on", "An unknown number of events", "of an unknown age"]),
        (Lag(430, None), "", ["catching up", "At least 430 events", "of an unknown age"]),
    ],
)
def test_an_answer_says_why_it_is_behind_and_how_far(lag: Lag | None, problem: str, words: list[str]) -> None:
    why = why_behind(answer(lag, problem)) or ""
    assert [word for word in words if word not in why] == []
