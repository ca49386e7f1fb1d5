"""The delay between two looks for new records follows how long none came."""

from __future__ import annotations

import pytest

from speed_layer.polling import BUSY_MS, IDLE_MS, Polling, delay_after


@pytest.mark.parametrize(
    ("idle_s", "delay_ms"), [(0, BUSY_MS), (0.9, BUSY_MS), (1, 25), (9.9, 25), (10, 100), (60, IDLE_MS), (1e9, IDLE_MS)]
)
def test_delay_grows_while_nothing_comes(idle_s: float, delay_ms: int) -> None:
    assert delay_after(idle_s) == delay_ms


def test_a_micro_batch_makes_spark_look_often_again() -> None:
    now, found = [0.0], list[int]()
    polling = Polling(found.append, clock=lambda: now[0])
    for now[0] in (0.5, 5.0, 6.0, 70.0):
        polling.adapt()
    assert found == [25, IDLE_MS]
    polling.record()
    polling.record()
    assert found == [25, IDLE_MS, BUSY_MS]


def test_a_delay_that_cannot_be_set_stays() -> None:
    polling = Polling(None, clock=iter([0.0, 100.0]).__next__)
    polling.adapt()
    assert polling.delay_ms == BUSY_MS
