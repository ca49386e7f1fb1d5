"""Tracked events and their users: product analytics over what Segment's libraries send."""

from __future__ import annotations

from tidemark import Count, Distinct, View
from views.catalog.segment import segment

tracked_events = View(
    "tracked_events",
    source=segment,
    grain="1h",
    # Pages and screens are events as well; their names are in another field.
    keys={"event": "case when type = 'track' then event else concat(type, ': ', coalesce(name, '')) end"},
    where="type in ('track', 'page', 'screen')",
    answers={
        "events": Count(),
        # Somebody who has not signed in yet has an anonymous id alone.
        "users": Distinct("coalesce(user_id, anonymous_id)"),
        # Values of the map `properties` are text. For sums, declare a source of your own with a struct; the same
        # calls fill it.
        "groups": Distinct("group_id"),
    },
    doc="Tracked events, pages and screens, and how many users and groups they come from.",
)
