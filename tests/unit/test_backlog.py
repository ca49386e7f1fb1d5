"""When a run overtakes the speed layer: tables of what was seen of a backlog, with fixed clocks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batch_layer.backlog import MAX_WAIT_S, REST_S, Action, Backlog, Limits, Sample, catch_up, run_seconds
from speed_layer.pause import Pause

LIMITS = Limits(behind_events=50_000, behind_s=30, redis_share=0.4)


def backlog(*seen: tuple[float, int, int], limits: Limits = LIMITS, share: float = 0.0) -> Backlog:
    """Of (time, applied, Kafka's end)."""
    found = Backlog(limits)
    for at, applied, end in seen:
        found.add(Sample(at, applied, end, share))
    return found


YEAR = [(float(at), 700 * at, 336_000) for at in range(12)]
"""A year of history that came at once, worked off at 700 events a second."""
POURING = [(float(at), 700 * at, 10_000 * at) for at in range(20)]
"""History that is still being sent."""


@pytest.mark.parametrize(
    ("seen", "last_run_s", "action"),
    [
        pytest.param([], None, Action.NONE, id="nothing was seen"),
        pytest.param([(0, 0, 0)], None, Action.NONE, id="nothing waits"),
        pytest.param(YEAR, 20, Action.OVERTAKE, id="history"),
        pytest.param(YEAR, None, Action.OVERTAKE, id="history before the first run"),
        pytest.param(YEAR, 3_600, Action.NONE, id="the run would take longer than the speed layer"),
        pytest.param(YEAR[:9], 20, Action.NONE, id="not watched for long enough"),
        pytest.param([(at, 0, end) for at, _, end in YEAR], 20, Action.OVERTAKE, id="the speed layer stands still"),
        pytest.param([(float(at), 0, 49_999) for at in range(12)], 20, Action.NONE, id="too few wait"),
        pytest.param([(float(at), 9_000 * at, 336_000) for at in range(12)], 20, Action.NONE, id="it is fast enough"),
        pytest.param(POURING, 20, Action.WAIT, id="more pours in"),
        pytest.param(
            [*POURING, *((20.0 + at, 14_000, 190_000) for at in range(4))],
            20,
            Action.OVERTAKE,
            id="all of it is there now",
        ),
    ],
)  # fmt: skip
def test_a_run_overtakes_where_it_is_faster_than_the_speed_layer(
    seen: list[tuple[float, int, int]], last_run_s: float | None, action: Action
) -> None:
    found = Backlog(LIMITS)
    for at, applied, end in seen:
        found.add(Sample(at, applied, end))
        verdict = found.judge(last_run_s)
    assert (verdict.action if seen else found.judge(last_run_s).action) == action


def test_events_that_never_cease_to_pour_in_are_not_waited_for_without_end() -> None:
    found, actions = Backlog(LIMITS), []
    for at in range(20 + int(MAX_WAIT_S)):
        found.add(Sample(float(at), 700 * at, 10_000 * at))
        actions.append(found.judge(20).action)
    assert actions[-1] == Action.OVERTAKE
    assert set(actions) == {Action.NONE, Action.WAIT, Action.OVERTAKE}
    assert actions == sorted(actions, key=[Action.NONE, Action.WAIT, Action.OVERTAKE].index), "never back and forth"


def import_seen(rate: int, *, until_s: int, speed: int = 2_000, total: int = 336_000) -> list[Sample]:
    """An import that sends `rate` events a second and says what is to come, beside a speed layer of this rate."""
    sent = [min(rate * at, total) for at in range(until_s)]
    applied = [min(speed * at, sent[at]) for at in range(until_s)]
    return [Sample(float(at), applied[at], sent[at], 0.0, total - sent[at]) for at in range(until_s)]


@pytest.mark.parametrize(
    ("seen", "action"),
    [
        pytest.param(import_seen(13_000, until_s=5), Action.OVERTAKE, id="it will take long, as three seconds show"),
        pytest.param(import_seen(13_000, until_s=3), Action.NONE, id="not watched for long enough"),
        pytest.param(import_seen(13_000, until_s=5, speed=13_000), Action.NONE, id="the speed layer keeps up"),
        pytest.param(import_seen(13_000, until_s=5, speed=9_000), Action.NONE, id="it is fast enough"),
        pytest.param(import_seen(13_000, until_s=9, speed=0), Action.NONE, id="its first micro-batch may take long"),
        pytest.param(import_seen(13_000, until_s=12, speed=0), Action.OVERTAKE, id="it stands still"),
        pytest.param(import_seen(5_000, until_s=5, total=40_000), Action.NONE, id="too few are to come"),
        pytest.param([Sample(*each[:4]) for each in import_seen(13_000, until_s=5)], Action.NONE, id="nobody says so"),
    ],
)
def test_an_import_that_says_what_is_to_come_is_judged_as_if_that_were_there(
    seen: list[Sample], action: Action
) -> None:
    found = Backlog(LIMITS)
    for sample in seen:
        found.add(sample)
        verdict = found.judge(20)
    assert verdict.action == action


def test_an_import_that_has_just_ended_is_not_waited_for() -> None:
    found = Backlog(LIMITS)
    for at in range(20):
        found.add(Sample(float(at), 0, 17_000 * at, 0.0, 17_000 * (19 - at) if at < 19 else None))
    assert found.judge(20).action == Action.OVERTAKE
    without = Backlog(LIMITS)
    for sample in found.samples:
        without.add(sample._replace(to_come=None))
    assert without.judge(20).action == Action.WAIT, "of others it is not known whether more comes"


def test_while_it_is_waited_for_a_speed_layer_that_stands_still_changes_nothing() -> None:
    found = backlog(*YEAR)
    assert found.judge(20).action == Action.OVERTAKE
    for at in range(12, 30):
        found.add(Sample(float(at), YEAR[-1][1], 336_000))
        assert found.judge(20).action == Action.OVERTAKE


def test_a_backlog_that_was_worked_off_is_forgotten() -> None:
    found = backlog(*YEAR)
    assert found.judge(20).action == Action.OVERTAKE
    found.add(Sample(13, 336_000, 336_000))
    assert found.judge(20).action == Action.NONE
    found.add(Sample(14, 336_000, 600_000))
    assert found.judge(20).action == Action.NONE, "another one, which is watched first"


def test_no_run_follows_a_run_that_failed_until_the_pause_is_over() -> None:
    found = backlog(*YEAR)
    found.quiet_until = 100
    assert found.judge(20).action == Action.NONE
    found.add(Sample(101, 7_700, 336_000))
    assert found.judge(20).action == Action.OVERTAKE


def test_a_speed_layer_that_was_set_back_is_measured_from_there() -> None:
    found = backlog((0, 100_000, 400_000), (10, 200_000, 400_000), (11, 0, 400_000))
    assert [sample.at for sample in found.samples] == [11]


def test_zero_events_switch_it_off_and_zero_seconds_make_it_immediate() -> None:
    off = Limits(0, 30, 0.4)
    assert backlog(*YEAR, limits=off).judge(20).action == Action.NONE
    at_once = Limits(10, 0, 0.4)
    found = backlog((0, 0, 20), (3, 0, 20), limits=at_once)
    assert found.judge(20).action == Action.OVERTAKE


@pytest.mark.parametrize(
    ("share", "since_run_s", "action"),
    [(0.39, None, Action.NONE), (0.41, None, Action.RUN), (0.41, REST_S + 1, Action.RUN), (0.41, 5.0, Action.NONE)],
)
def test_speed_views_that_take_much_of_redis_are_freed_by_a_run(
    share: float, since_run_s: float | None, action: Action
) -> None:
    assert backlog((0, 10, 10), share=share).judge(20, since_run_s).action == action


@pytest.mark.parametrize(
    ("limit", "states", "since_run_s", "action"),
    [
        (1_000, 0, None, Action.NONE),
        (1_000, 1_000, None, Action.NONE),
        (1_000, 1_001, None, Action.RUN),
        (1_000, 1_001, REST_S + 1, Action.RUN),
        (1_000, 1_001, 5.0, Action.NONE),
        (0, 1_001, None, Action.NONE),
    ],
)
def test_speed_views_of_many_states_are_freed_by_a_run(
    limit: int, states: int, since_run_s: float | None, action: Action
) -> None:
    found = Backlog(replace(LIMITS, states=limit))
    found.add(Sample(0, 10, 10, states=states))
    verdict = found.judge(20, since_run_s)
    assert verdict.action == action
    assert verdict.reason == ("1,001 states" if action == Action.RUN else "")


@pytest.mark.parametrize(
    ("seen", "seconds"),
    [
        ([(0, 0, 0)], 0.0),
        ([(0, 0, 10)], None),
        ([(0, 0, 10), (5, 0, 10)], None),
        ([(0, 0, 10), (5, 5, 10)], 5.0),
        ([(0, 0, 10), (5, 5, 30)], 25.0),
        ([(0, 0, 10), (5, 10, 10)], 0.0),
    ],
)
def test_the_time_to_catch_up_is_the_rest_at_the_rate_that_was_seen(
    seen: list[tuple[float, int, int]], seconds: float | None
) -> None:
    assert catch_up([Sample(*each) for each in seen]) == seconds


def test_a_run_takes_about_what_the_last_one_took_and_more_for_more_events() -> None:
    assert run_seconds(0, 5) < run_seconds(0, 50) < run_seconds(1_000_000, 50)
    assert run_seconds(0, None) > 0


# ---- the pause of the speed layer ----------------------------------------------


def test_the_speed_layer_waits_while_a_run_is_announced_but_not_for_ever() -> None:
    now, announced = [0.0], [False]
    pause = Pause(10, lambda: announced[0], lambda: now[0])
    assert not pause.holds()
    announced[0] = True
    assert pause.holds()
    now[0] = 9.9
    assert pause.holds()
    assert pause.is_held
    now[0] = 10.0
    assert not pause.holds(), "whoever announced it takes too long"
    now[0] = 500.0
    assert not pause.holds()
    announced[0] = False
    assert not pause.holds()
    announced[0] = True
    assert pause.holds(), "another run"


def test_a_pause_of_zero_seconds_is_none() -> None:
    assert not Pause(0, lambda: True).holds()
