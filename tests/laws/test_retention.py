"""Retention: removing old events changes no answer, and none of them counts again when it is sent again."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from views import in_memory
from views.aggregates import Count, Last, Sum
from views.in_memory import Event, Foundation
from views.source import Source
from views.types import EPOCH
from views.view import View

SOURCE = Source("web", fields="event_id string, event_time timestamp, url string, n long", partitions=3)
VIEW = View("hits", SOURCE, {"hits": Count(), "total": Sum("n"), "last": Last("n")}, keys={"url": "url"}, grain="1d")
Content = tuple[int, int, int, int]


def at(day: int) -> datetime:
    return EPOCH + timedelta(days=20_000 + day)


def events_of(contents: list[Content]) -> list[Event]:
    """Events in their order of arrival; duplicates may differ in all but the id."""
    offsets = [0, 0, 0]
    found = []
    for id_, partition, day, number in contents:
        fields = {"url": "ab"[number % 2], "n": number}
        found.append(Event(partition, offsets[partition], f"id{id_}", at(day), fields))
        offsets[partition] += 1
    return found


CONTENTS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2), st.integers(0, 3), st.integers(0, 99)), max_size=30)
CUTS = st.dictionaries(st.integers(0, 2), st.integers(0, 12), max_size=3)


def below(cut: dict[int, int], event: Event) -> bool:
    return event.offset < cut.get(event.partition, 0)


@given(CONTENTS, st.lists(CUTS, min_size=1, max_size=3))
def test_removing_events_that_a_run_counted_changes_no_answer(
    contents: list[Content], cuts: list[dict[int, int]]
) -> None:
    events = left = events_of(contents)
    foundation = Foundation()
    for cut in cuts:
        foundation = foundation.extended(VIEW, left, cut)
        left = [event for event in left if not below(cut, event)]
        assert in_memory.answers(VIEW, left, foundation) == in_memory.answers(VIEW, events)


@given(CONTENTS, CONTENTS, CUTS)
def test_each_id_counts_once_whatever_comes_after_a_removal(
    before: list[Content], after: list[Content], cut: dict[int, int]
) -> None:
    events = events_of([*before, *after])
    first = events[: len(before)]
    counted = in_memory.counted(first)
    foundation = Foundation().extended(VIEW, first, cut)
    left = [event for event in events if event not in first or not below(cut, event)]
    answers = in_memory.answers(VIEW, left, foundation)
    assert sum(answer["hits"] for answer in answers.values()) == len({event.event_id for event in events})
    assert foundation.ids == {event.event_id for event in counted if below(cut, event)}
