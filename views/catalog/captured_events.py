"""Captured events and their users, over what PostHog's libraries send."""

from __future__ import annotations

from tidemark import Count, Distinct, TopK, View
from views.catalog.posthog import posthog

captured_events = View(
    "captured_events",
    source=posthog,
    grain="1h",
    keys={"event": "event"},
    # Names that begin with $ are PostHog's own, such as $identify. Pages are events of the program.
    where="event not like '$%' or event = '$pageview'",
    answers={"events": Count(), "users": Distinct("distinct_id"), "top_users": TopK("distinct_id", k=5)},
    doc="Captured events, how many users they come from, and who causes most of them.",
)
