"""The verdict on alerts: whatever the alert process could do wrong is found."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from serving_layer.alerts.episodes import Episode, EpisodeState
from torture.alert_check import judge, misdelivered, true_periods
from torture.shop import popular
from views.in_memory import Event

DAY = 86_400
A, B = ("a", True), ("b", None)


def episode(key: tuple[Any, ...], first: int, last: int) -> Episode:
    names = ("item", "paid")
    return Episode(
        f"{key[0]}-{first}", "popular", "sales", names, key, EpisodeState.RESOLVED, first, last, 1.0, fired_at=2.0
    )


@pytest.mark.parametrize(
    ("fired", "problems"),
    [
        ([episode(A, 0, DAY), episode(B, DAY, DAY)], 0),
        ([episode(A, 0, 0), episode(A, DAY, DAY), episode(B, DAY, DAY)], 0),  # each was true before the other
        ([episode(A, 0, DAY)], 1),  # one is missing
        ([episode(A, 0, DAY), episode(A, 0, 0), episode(B, DAY, DAY)], 1),  # twice
        ([episode(A, 0, 2 * DAY), episode(B, DAY, DAY)], 1),  # false
        ([episode(A, 0, DAY), episode(B, DAY, DAY), episode(("c", True), 0, 0)], 1),
        ([], 3),
    ],
)
def test_each_true_period_is_in_one_episode_that_fired(fired: list[Episode], problems: int) -> None:
    true = {(A, 0), (A, DAY), (B, DAY)}
    assert len(list(judge(DAY, true, fired))) == problems


@pytest.mark.parametrize(
    ("firing", "by_kafka", "problems"),
    [
        ({"a": 1, "b": 1}, {"a", "b"}, []),
        ({"a": 2, "b": 1}, {"a", "b"}, ["a fired 2 times"]),
        ({"a": 1, "b": 1}, {"a"}, ["b fired, and was never sent to tidemark.alerts"]),
        ({"a": 1, "b": 1}, {"a", "b", "c"}, ["c was notified, and never fired"]),
    ],
)
def test_each_episode_fires_once_and_is_sent(firing: dict[str, int], by_kafka: set[str], problems: list[str]) -> None:
    assert list(misdelivered(["a", "b"], Counter(firing), by_kafka)) == problems


def test_what_is_true_is_decided_by_the_reference_interpreter_at_the_cut() -> None:
    """Twenty orders of one item on a day, of which one is a copy and one is above the cut."""
    at = datetime(2026, 3, 1, 22, tzinfo=UTC)
    events = [
        Event(0, n, f"e{min(n, 20)}", at, {"item": "a", "paid": True, "cents": 1, "user_id": "u", "ms": 1.0})
        for n in range(22)
    ]
    truth: Any = SimpleNamespace(
        times=lambda: [int(at.timestamp()) // 3600],
        events=lambda cut, _start, _end: [event for event in events if event.offset < cut[0]],
    )
    day = int(at.timestamp()) // DAY * DAY
    assert true_periods(popular, truth, {0: 19}) == set()
    assert true_periods(popular, truth, {0: 20}) == {(("a", True), day)}
