"""Events of PostHog's libraries, as `POST /batch/` stores them."""

from __future__ import annotations

from tidemark import Source

posthog = Source(
    "posthog",
    fields="""
        event_id string,
        event_time timestamp,
        event string,
        distinct_id string,
        properties map<string, string>,
        person_set map<string, string>,
        person_set_once map<string, string>,
        groups map<string, string>,
        original_timestamp timestamp,
        sent_at timestamp,
        received_at timestamp
    """,
    doc="Events that PostHog's libraries capture.",
)
