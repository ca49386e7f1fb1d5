"""The fault that gives the shop its next version, and the events as each version reads them."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from torture import shop
from torture.errors import TortureError
from torture.faults import all_faults, versions
from torture.faults.failpoints import IN_EVOLUTIONS
from torture.load import history
from torture.readings import read_by
from views.evolution import evolution
from views.source import Source

SHOP = Path(shop.__file__).read_text()


def declared(text: str) -> Source:
    names: dict[str, object] = {}
    exec(compile(text, "declared.py", "exec"), names)  # noqa: S102  our own declaration
    found = names["shop"]
    assert isinstance(found, Source)
    return found


def test_each_next_version_of_the_shop_may_follow_the_one_before() -> None:
    text, earlier = SHOP, [declared(SHOP)]
    for number in range(2, 6):
        text = versions.next_version(text)
        following = declared(text)
        assert following.version == number
        found = evolution(earlier[-1], following, earlier[:-1])
        assert not found.refused
        assert found.changes, "it reads records otherwise"
        earlier.append(following)


def test_a_source_of_somebody_else_gets_no_other_version() -> None:
    with pytest.raises(TortureError, match="only the shop"):
        versions.next_version("")


def test_a_switch_is_killed_at_each_of_its_own_places() -> None:
    everything = {fault.name for fault in all_faults()}
    assert {f"a switch killed at {name}" for name in (*IN_EVOLUTIONS, "run.after_publish", "speed.before_load")} <= (
        everything
    )


def test_an_event_is_read_by_the_version_that_answers() -> None:
    first, second = declared(SHOP), declared(versions.next_version(SHOP))
    made = history(first, [shop.sales], random.Random(3), 200)  # noqa: S311  no secret
    events = [record.event for record in made if record.event is not None]
    without = next(event for event in events if "item" not in event.fields)
    large = replace(events[0], fields={**events[0].fields, "tries": versions.LARGE})
    assert list(read_by(first, events)) == events, "as it was sent"
    assert [*read_by(first, [large, without])] == [without]
    read = [*read_by(second, [large, without])]
    assert [event.event_id for event in read] == [large.event_id, without.event_id]
    assert read[1].fields["item"] == "none2"
