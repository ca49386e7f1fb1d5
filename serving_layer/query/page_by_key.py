"""Pages in the order of keys: of very many keys only the states of those that are on the page are kept. Pure.

Packed keys sort like the rows of their values (views/keys.py). So the first keys after the position of a cursor are
known from their bytes, and the states of all others are passed by.
"""

from __future__ import annotations

import struct
from bisect import insort
from collections.abc import Iterable
from datetime import date
from typing import Any

from hand_off.speed_views import State
from serving_layer.query.model import Query
from serving_layer.query.order import BUCKET, kind_of
from views.keys import pack_key


def is_by_key(query: Query) -> bool:
    """Whether the keys alone decide which rows come first: one period, all keys, no condition on rows."""
    keys = tuple(query.view.keys)
    ordered = [each for each in query.order if each.name != BUCKET]
    return (
        bool(keys)
        and len(query.windows) == 1
        and query.by == keys
        and not query.filters
        and query.having is None
        and query.previous is None
        and not query.fill
        and tuple(each.name for each in ordered) == keys
        and not any(each.descending for each in ordered)
    )


def last_key(query: Query) -> bytes | None:
    """The packed key of the last row of the page before; less than all keys where none of the period's was given yet.

    That is so on the first page, and where rows come by time and the page before ended in another period: the query may
    be one part of several (plan.py). None where a forged cursor has a value that no key can have.
    """
    if query.cursor is None:
        return b""
    by_name = dict(zip((each.name for each in query.order), query.cursor.after, strict=True))
    if query.order[0].name == BUCKET and by_name[BUCKET] != query.periods[0].start:
        return b""
    try:
        return pack_key([_value(by_name[name], kind_of(name, query.view)) for name in query.view.keys])
    except (ValueError, OverflowError, struct.error):
        return None


def _value(at: Any, kind: str | None) -> Any:
    """The value of a key, from that of a position (order.py)."""
    return date.fromisoformat(at) if kind == "date" and at is not None else at


def first_states(
    batch: Iterable[State], speed: Iterable[State], after: bytes, count: int
) -> tuple[list[State], list[State]]:
    """The states of both views that have one of the first `count` keys after a key."""
    both = _first(batch, after, count), _first(speed, after, count)
    keys = sorted(both[0].keys() | both[1].keys())[:count]
    of_batch, of_speed = ([state for key in keys for state in found.get(key, ())] for found in both)
    return of_batch, of_speed


def _first(states: Iterable[State], after: bytes, count: int) -> dict[bytes, list[State]]:
    """The states of the first keys. The keys come mostly in their order, so that most are passed by at once."""
    found: dict[bytes, list[State]] = {}
    keys: list[bytes] = []
    for state in states:
        key = state[1]
        if key <= after:
            continue
        if len(keys) == count and key > keys[-1]:
            continue
        known = found.get(key)
        if known is not None:
            known.append(state)
            continue
        if len(keys) == count:
            del found[keys.pop()]
        insort(keys, key)
        found[key] = [state]
    return found
