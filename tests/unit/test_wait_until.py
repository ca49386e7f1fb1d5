"""Waiting in tests: a condition that is dear to evaluate leaves the processors to what it waits for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import conftest


class Clock:
    """Time that passes only when somebody sleeps or works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def condition(self, takes_s: float, looks: int) -> Callable[[], bool]:
        """True at the last of so many looks, each of which takes so long."""
        left = [looks]

        def look() -> bool:
            self.now += takes_s
            left[0] -= 1
            return left[0] == 0

        return look


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(conftest, "time", made)
    return made


@pytest.mark.parametrize(("takes_s", "pause_s"), [(0.0, 0.05), (0.01, 0.05), (0.25, 0.75), (30.0, 2.0)])
def test_pause_is_longer_the_longer_a_look_takes_within_bounds(clock: Clock, takes_s: float, pause_s: float) -> None:
    assert conftest.wait_until("it", clock.condition(takes_s, looks=3), deadline_s=120) is True
    assert clock.pauses == [pytest.approx(pause_s)] * 2


def test_deadline_is_said(clock: Clock) -> None:
    with pytest.raises(pytest.fail.Exception, match="waited 1 s for it, in vain; last value: False"):
        conftest.wait_until("it", clock.condition(0.25, looks=99), deadline_s=1)
    assert clock.now < 1 + 4 * 0.25 + 0.01


def test_condition_that_is_true_is_not_waited_for(clock: Clock) -> None:
    assert conftest.wait_until("it", clock.condition(0.25, looks=1)) is True
    assert clock.pauses == []
