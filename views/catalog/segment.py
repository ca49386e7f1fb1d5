"""Calls of Segment's libraries, as `POST /v1/batch` stores them."""

from __future__ import annotations

from tidemark import Source

segment = Source(
    "segment",
    fields="""
        event_id string,
        event_time timestamp,
        type string,
        event string,
        user_id string,
        anonymous_id string,
        previous_id string,
        group_id string,
        name string,
        category string,
        properties map<string, string>,
        traits map<string, string>,
        context map<string, string>,
        original_timestamp timestamp,
        sent_at timestamp,
        received_at timestamp
    """,
    # A map takes whatever an application sends: numbers as text, objects as JSON text.
    doc="Calls of Segment's libraries: track, identify, page, screen, group and alias.",
)
