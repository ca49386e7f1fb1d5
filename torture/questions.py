"""Queries of any view: small ranges of time, any keys, any grain that goes with the view."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from serving_layer.query.parse import PARAMETERS
from torture.comparison import has_an_order
from views.aggregates.counting import CountAlgebra
from views.view import View

HALF_HOUR_S, HOUR_S, DAY_S = 1800, 3600, 24 * 3600
LONGEST = 4
FINE, FINEST = 0.3, 10
"""How often a view that is finer than an hour is asked by its own grain, and over how many periods of it."""
WHOLE = 0.04
"""How often a query covers all data."""
FIRST, FILTERED = 0.15, 0.15
"""How often a query asks for the top rows by a count, or filters by a key."""
ZONED, ZONES, HALF_ZONE = 0.2, ("Europe/Berlin", "America/New_York", "Asia/Tokyo", "Pacific/Honolulu"), "Asia/Kolkata"
"""How often a query has a time zone. The zones are off by whole hours, which views of hours can answer; the last one is
off by half an hour."""
ROLLING = 0.2
"""How often answers are taken over a window that ends with each period."""
PAGED, PAGE_ROWS = 0.1, (2, 5, 20)
"""How often rows are asked for in pages, and how many to a page."""


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
    query = {"from": iso(start), "to": iso(end), "limit": "10000"}
    by = [name for name in view.keys if chance.random() < 0.5]
    if by:
        query["by"] = ",".join(by)
    if unit == HOUR_S and chance.random() < ZONED:
        query |= _elsewhere(view, start, chance)
    elif view.bucket.seconds < HOUR_S and chance.random() < FINE:
        length = view.bucket.seconds
        start = start // length * length + chance.randrange(HOUR_S // length) * length
        query |= {"from": iso(start), "to": iso(start + length * FINEST), "grain": view.grain}
    elif (is_whole and view.bucket.seconds < HOUR_S) or chance.random() < 0.5:  # not too many periods for one answer
        query["grain"] = "day" if unit == DAY_S else "hour"
        if unit == HOUR_S and chance.random() < ROLLING:
            query["window"] = chance.choice(("2h", "6h", "24h"))
    counts = [name for name in view.answers if isinstance(view.algebras.get(name), CountAlgebra)]
    if counts and chance.random() < FIRST:
        query |= {"order": f"-{chance.choice(counts)}", "limit": str(chance.randint(1, 5))}
    filtered = sorted(name for name in known or () if name not in PARAMETERS)
    if known and filtered and chance.random() < FILTERED:
        key = chance.choice(filtered)
        operators = ("", ".not", ".prefix") if _kind(view, key) == "string" else ("", ".not")
        operator = chance.choice(operators)
        query[key + operator] = known[key] if operator != ".prefix" else known[key][:2]
    if "order" not in query and has_an_order(view) and chance.random() < PAGED:
        query["limit"] = str(chance.choice(PAGE_ROWS))
    return query


def _elsewhere(view: View, start: int, chance: random.Random) -> dict[str, str]:
    """Days, weeks and quarters of days in another time zone."""
    zones = ZONES if view.bucket.seconds > HALF_HOUR_S else (*ZONES, HALF_ZONE)
    first, days = start - DAY_S * chance.randrange(3), chance.randint(1, 3)
    query = {"tz": chance.choice(zones), "grain": chance.choice(("6h", "day", "week"))}
    if query["grain"] == "day" and chance.random() < ROLLING:
        query["window"] = "2d"
    return {**query, "from": iso(first), "to": iso(first + DAY_S * days)}


def _kind(view: View, key: str) -> str:
    return view.key_expressions[key].type.kind


def as_json(view: View, query: Mapping[str, str]) -> dict[str, Any]:
    """The same query as a body of `POST /query`."""
    body: dict[str, Any] = {"view": view.name, "filters": {}}
    for name, value in query.items():
        key, _, operator = name.partition(".")
        if key in view.keys:
            plain = value == "true" if _kind(view, key) == "boolean" else value
            body["filters"][key] = {operator: plain} if operator else plain
        else:
            body[name] = int(value) if name == "limit" else value
    return body


def whole(view: View, hours: Sequence[int]) -> dict[str, str]:
    """A query of all data, by day."""
    first, last = hours[0] * HOUR_S // DAY_S * DAY_S, -(-(hours[-1] + 1) * HOUR_S // DAY_S) * DAY_S
    return {"from": iso(first), "to": iso(last), "limit": "10000", "grain": "day"}


def iso(seconds: float) -> str:
    """A time as queries have it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
