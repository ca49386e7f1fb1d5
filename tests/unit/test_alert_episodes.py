"""Episodes: whatever happens in whatever order, one firing for each, and none without a reason."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from serving_layer.alerts.episodes import Episode, EpisodeState, Judgement, Rule, Step, advance, advance_silence

RULE = Rule("many", "tries", ("card",), step_s=10, in_row=1, keep_s=20)
KEY = ("a",)


class Run:
    """One key over several evaluations."""

    def __init__(self, rule: Rule = RULE) -> None:
        self.rule, self.episodes, self.transitions = rule, {}, []  # type: ignore[var-annotated]

    def look(self, true: Mapping[int, bool], now: float) -> list[str]:
        judged = {period: Judgement(is_true, {"attempts": period}) for period, is_true in true.items()}
        return self._take(advance(self.rule, KEY, self.episodes.values(), judged, now, now))

    def silence(self, last: int, now: float) -> list[str]:
        return self._take(advance_silence(self.rule, KEY, self.episodes.values(), last, 60, now, now))

    def _take(self, step: Step) -> list[str]:
        self.episodes |= {episode.id: episode for episode in step.changed}
        self.transitions += step.transitions
        return [str(episode.state) for episode in step.transitions]

    @property
    def fired(self) -> list[Episode]:
        return [episode for episode in self.transitions if episode.state is EpisodeState.FIRING]


def test_fires_once_and_is_over_when_the_time_is() -> None:
    run = Run()
    assert run.look({100: True}, 101) == ["firing"]
    assert run.look({100: True}, 102) == []
    assert run.look({110: True}, 111) == []  # the next period is the same episode
    assert run.look({}, 139) == []
    assert run.look({}, 140) == ["resolved"]
    assert run.look({}, 200) == []


def test_fires_again_after_it_was_over() -> None:
    run = Run()
    run.look({100: True}, 101)
    run.look({}, 130)
    assert run.look({140: True}, 141) == ["firing"]
    assert len({episode.id for episode in run.fired}) == 2


def test_periods_within_keep_are_one_episode() -> None:
    run = Run()
    run.look({100: True}, 101)
    assert run.look({130: True}, 131) == []
    assert len(run.fired) == 1


def test_waits_for_as_many_periods_as_are_asked_for() -> None:
    run = Run(RULE._replace(in_row=3))
    assert run.look({100: True}, 101) == ["pending"]
    assert run.look({100: True, 110: True}, 111) == []
    assert run.look({100: True, 110: True, 120: True}, 121) == ["firing"]
    (fired,) = run.fired
    assert (fired.first, fired.last, fired.pending_at, fired.fired_at) == (100, 120, 101, 121)


def test_a_pending_episode_may_be_resolved_without_having_fired() -> None:
    run = Run(RULE._replace(in_row=2))
    run.look({100: True}, 101)
    assert run.look({110: False}, 119) == []
    assert run.look({}, 120) == ["resolved"]
    assert run.transitions[-1].fired_at is None


def test_late_events_fire_an_episode_of_their_own_that_is_over_at_once() -> None:
    run = Run()
    assert run.look({100: True}, 10_000) == ["firing", "resolved"]


def test_late_events_that_join_a_fired_episode_do_not_fire_again() -> None:
    run = Run()
    run.look({100: True}, 101)
    run.look({}, 130)
    run.look({160: True}, 161)
    assert len(run.fired) == 2
    run.look({}, 200)
    assert run.look({120: True, 130: True, 140: True}, 500) == []  # between them, and next to both


def test_a_late_period_completes_a_row() -> None:
    run = Run(RULE._replace(in_row=3))
    run.look({100: True}, 101)
    run.look({}, 120)
    run.look({120: True}, 121)
    assert run.look({100: True, 110: True, 120: True}, 500)[0] in ("firing", "resolved")
    assert len(run.fired) == 1


def test_a_condition_that_flickers_within_its_period_fires_once() -> None:
    run = Run()
    said = [run.look({100: is_true}, 101 + number) for number, is_true in enumerate([True, False, True, False, True])]
    assert said == [["firing"], [], [], [], []]


def test_silence_fires_once_for_each_and_ends_with_the_next_event() -> None:
    run = Run()
    assert run.silence(100, 159) == []
    assert run.silence(100, 160) == ["firing"]
    assert run.silence(100, 400) == []
    assert run.silence(390, 401) == ["resolved"]
    assert run.silence(390, 402) == []
    assert run.silence(390, 450) == ["firing"]


LOOKS = st.lists(
    st.tuples(st.dictionaries(st.integers(0, 12), st.booleans(), max_size=4), st.integers(0, 25)), max_size=12
)


@given(LOOKS, st.integers(1, 3), st.integers(1, 4))
def test_no_two_firings_belong_together_and_every_row_has_fired(
    evaluations: list[tuple[dict[int, bool], int]], in_row: int, keep: int
) -> None:
    """Whatever is judged when: no period fires twice, and no row of true periods is left out."""
    run = Run(RULE._replace(in_row=in_row, keep_s=10 * keep))
    truth: dict[int, bool] = {}
    now = 0.0
    for changes, later in evaluations:
        now += later * 10
        truth |= {10 * period: is_true for period, is_true in changes.items()}
        before = [episode for episode in run.episodes.values() if episode.fired_at is not None]
        new = len(run.fired)
        run.look(truth, now)
        for fired in run.fired[new:]:
            room = 10 + run.rule.keep_s
            assert all(fired.first > each.last + room or each.first > fired.last + room for each in before)
            assert all(truth.get(period) for period in range(fired.first, fired.last + 1, 10))
            assert (fired.last - fired.first) // 10 + 1 >= in_row
        fired = [episode for episode in run.episodes.values() if episode.fired_at is not None]
        for start in range(0, 130, 10):
            row = range(start, start + 10 * in_row, 10)
            if all(truth.get(period) for period in row):
                assert any(each.first <= row[0] <= each.last for each in fired), (truth, row)
    assert len({episode.id for episode in run.fired}) == len(run.fired)
    states = {}
    for episode in run.transitions:  # pending, firing, resolved: each at most once, in this order
        order = ["pending", "firing", "resolved"].index(episode.state)
        assert order > states.get(episode.id, -1)
        states[episode.id] = order
