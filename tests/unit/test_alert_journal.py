"""The journal of alerts: what it lets go when there is too much, and what it never does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from serving_layer.alerts.episodes import Episode, EpisodeState
from serving_layer.alerts.journal import DAY_S, PRUNE_EVERY, Evaluation, Journal, Transitions
from serving_layer.alerts.notifications import Notification
from serving_layer.alerts.tables.positions import FollowerPosition
from views.short_texts import shorten

OVER = Episode("", "many", "tries", ("card",), ("a",), EpisodeState.RESOLVED, 0, 0, 0.0, 0.0, 0.0, {})
MAX = 10


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "alerts.sqlite", max_episodes=MAX, max_waiting=MAX)
    yield made
    made.close()


def evaluation(**values: object) -> Evaluation:
    return Evaluation("taps", FollowerPosition({}, 0.0), 1.0)._replace(**values)


def prune(journal: Journal, **values: object) -> None:
    for _ in range(PRUNE_EVERY):
        journal.commit(evaluation(**values))


def test_episodes_that_evaluations_may_join_stay_however_many_there_are(journal: Journal) -> None:
    journal.arm({"many": "x"}, 0.0)
    found = [replace(OVER, id=f"e{number}", last=number, pending_at=number) for number in range(5 * MAX)]
    journal.commit(evaluation(changed=tuple(found)))
    prune(journal, horizons={"many": 20.0})
    assert [episode.last for episode in journal.episodes.all()] == list(range(49, 19, -1))
    prune(journal, horizons={"many": 1000.0})
    assert len(journal.episodes.all()) == MAX


def test_an_episode_of_an_older_version_with_a_long_key_is_one_of_its_short_form(journal: Journal) -> None:
    """Else it would be resolved by an upgrade, and fire again."""
    journal.commit(evaluation(changed=(replace(OVER, id="e1", key=("x" * 2_000,)),)))
    (found,) = journal.episodes.all()
    assert found.key == (shorten("x" * 2_000),)


def test_episodes_of_an_alert_that_is_gone_are_bounded(journal: Journal) -> None:
    found = [replace(OVER, id=f"e{number}", last=number, pending_at=number) for number in range(5 * MAX)]
    journal.commit(evaluation(changed=tuple(found)))
    prune(journal)
    assert len(journal.episodes.all()) == MAX


def test_history_is_bounded_by_days_but_open_and_joinable_episodes_stay(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "alerts.sqlite", history_days=2)
    journal.arm({"many": "x"}, 0.0)
    old = replace(OVER, id="old", last=5, resolved_at=10.0)
    found = (
        old,
        replace(old, id="open", state=EpisodeState.FIRING, resolved_at=None),
        replace(old, id="late", last=50, pending_at=1.0),
        replace(old, id="new", pending_at=2.0, resolved_at=3 * DAY_S),
        replace(old, id="gone", alert="no longer declared"),
    )
    for episode in found:
        bodies = tuple((episode, f"{episode.id} {number}") for number in range(2))
        journal.commit(evaluation(changed=(episode,), transitions=Transitions(bodies=bodies)))
    prune(journal, at=4 * DAY_S, horizons={"many": 20.0})
    assert {episode.id for episode in journal.episodes.all()} == {"open", "late", "new"}
    bodies = [body for _, _, body in journal.transitions.after(0)]
    assert bodies[:2] == ["open 0", "open 1"], "those of old come before the first that is still known"
    assert len(bodies) == 8
    assert len(journal.evaluations.all("taps")) == PRUNE_EVERY
    journal.close()


def test_a_pruned_history_goes_on_with_the_next_number(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "alerts.sqlite", history_days=1)
    journal.commit(evaluation(changed=(OVER,), transitions=Transitions(bodies=((OVER, "a"), (OVER, "b")))))
    prune(journal, at=9 * DAY_S)
    assert journal.episodes.all() == []
    assert journal.transitions.newest() == 2
    journal.close()


def test_a_target_that_waits_takes_no_room_from_the_others(journal: Journal) -> None:
    """Many messages to one target do not drop the few to another, and what is given up is counted."""
    few = tuple(Notification("webhook:quiet", f"q{number}", "k", "{}") for number in range(3))
    many = tuple(Notification("kafka", f"k{number}", "k", "{}") for number in range(3 * MAX))
    journal.commit(evaluation(transitions=Transitions(notifications=few)))
    journal.commit(evaluation(transitions=Transitions(notifications=many)))
    prune(journal)
    waiting = [each.delivery for each in journal.outbox.all()]
    assert waiting == ["q0", "q1", "q2", *(f"k{number}" for number in range(2 * MAX, 3 * MAX))]
    assert journal.outbox.given_up == {"kafka": 2 * MAX}
