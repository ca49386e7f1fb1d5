"""An import waits until the answers hold what it sent, and no longer than somebody works on that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from master_dataset.cut import Cut
from tidemark.commands.import_wait import PATIENCE_S, STALLED_S, Awaited, Progress, wait_for_answers

TARGET: Cut = {0: 10, 1: 10}


def waited(*looks: Progress, step_s: float = 1.0) -> tuple[Awaited, list[tuple[int, int, str]]]:
    """What comes of these looks, one a step; the last one goes on for ever."""
    now, shown = [0.0], []

    def following() -> Iterator[Progress]:
        yield from looks
        while True:
            yield looks[-1]

    found = following()

    def sleep(_seconds: float) -> None:
        now[0] += step_s

    result = wait_for_answers(
        lambda: next(found), TARGET, lambda *each: shown.append(each), clock=lambda: now[0], sleep=sleep
    )
    return result, shown


def at(cut: Cut | None, *, is_written: bool = True, stage: str = "") -> Progress:
    return Progress(cut, is_written, stage)


def test_it_ends_when_each_partition_is_there() -> None:
    result, shown = waited(at({}), at({0: 10}), at({0: 10, 1: 9}, stage="batch run"), at({0: 12, 1: 10}))
    assert result == Awaited(True, 3.0)
    assert shown == [(0, 20, ""), (10, 20, ""), (19, 20, "batch run")]


def test_what_is_there_already_is_not_waited_for() -> None:
    assert waited(at(TARGET)) == (Awaited(True, 0.0), [])


@pytest.mark.parametrize("cut", [None, {}, {0: 5}])
def test_a_speed_layer_that_does_not_run_is_not_waited_for(cut: Cut | None) -> None:
    result, _ = waited(at(cut, is_written=False))
    assert not result.is_complete
    assert result.seconds > PATIENCE_S
    assert "the speed layer does not run" in result.note


def test_one_that_starts_again_is() -> None:
    result, _ = waited(at({}), *[at(None, is_written=False)] * int(PATIENCE_S - 1), at({0: 5}), at(TARGET))
    assert result.is_complete


def test_answers_that_stand_still_are_given_up() -> None:
    result, _ = waited(at({0: 5}), at({0: 6}), step_s=30)
    assert not result.is_complete
    assert result.seconds > STALLED_S
    assert "no progress" in result.note


def test_a_redis_that_was_lost_shows_a_longer_way_and_no_negative_one() -> None:
    _, shown = waited(at({0: 9, 1: 9}), at({}), at(TARGET))
    assert shown == [(0, 2, ""), (0, 20, "")]
