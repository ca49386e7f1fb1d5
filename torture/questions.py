"""Questions about any view: small stretches of time, any keys, any grain that goes with the view."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from views.aggregates.counting import CountAlgebra
from views.view import View

HOUR_S, DAY_S = 3600, 24 * 3600
LONGEST = 4
FINE, FINEST = 0.3, 10
"""How often a view that is finer than an hour is asked by its own grain, and over how many periods of it."""
WHOLE = 0.04
"""How often everything there is is asked for."""
FIRST, FILTERED = 0.15, 0.15
"""How often only the first by a count are asked for, and those of one value of a key."""


def question(
    view: View, hours: Sequence[int], chance: random.Random, known: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The parameters of a query. `hours` are those (since 1970) that have events; the newest are asked for most.

    `known` are values that keys have, for a filter.
    """
    unit = DAY_S if view.bucket.seconds > HOUR_S else HOUR_S
    first, last = hours[0] * HOUR_S // unit * unit, (hours[-1] + 1) * HOUR_S
    is_whole = chance.random() < WHOLE
    if is_whole:
        start, end = first, -(-last // unit) * unit
    else:
        if chance.random() < 0.6:
            start = (last - 1) // unit * unit - unit * chance.randrange(LONGEST)
        else:
            start = chance.choice(hours) * HOUR_S // unit * unit
        end = start + unit * chance.randint(1, LONGEST if unit == HOUR_S else 1)
    asked = {"from": _iso(start), "to": _iso(end), "limit": "10000"}
    by = [name for name in view.keys if chance.random() < 0.5]
    if by:
        asked["by"] = ",".join(by)
    if view.bucket.seconds < HOUR_S and chance.random() < FINE:
        length = view.bucket.seconds
        start = start // length * length + chance.randrange(HOUR_S // length) * length
        asked |= {"from": _iso(start), "to": _iso(start + length * FINEST), "grain": view.grain}
    elif (is_whole and view.bucket.seconds < HOUR_S) or chance.random() < 0.5:  # not too many periods for one answer
        asked["grain"] = "day" if unit == DAY_S else "hour"
    counts = [name for name in view.answers if isinstance(view.algebras.get(name), CountAlgebra)]
    if counts and chance.random() < FIRST:
        asked |= {"order": f"-{chance.choice(counts)}", "limit": str(chance.randint(1, 5))}
    if known and chance.random() < FILTERED:
        key = chance.choice(sorted(known))
        asked[key] = known[key]
    return asked


def whole(view: View, hours: Sequence[int]) -> dict[str, str]:
    """Everything there is, in days."""
    first, last = hours[0] * HOUR_S // DAY_S * DAY_S, -(-(hours[-1] + 1) * HOUR_S // DAY_S) * DAY_S
    return {"from": _iso(first), "to": _iso(last), "limit": "10000", "grain": "day"}


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
