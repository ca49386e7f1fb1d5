"""Visits to a web site, as a page, an app or a web server's log reports them."""

from __future__ import annotations

from tidemark import Source, Watch

web = Source(
    name="web",
    fields="""
        event_id string,
        event_time timestamp,
        user_id string,
        name string,
        category string,
        properties struct<
            url: string, method: string, status: int, ms: double, bytes: bigint,
            referrer: string, agent: string, ip: string
        >
    """,
    doc="Page views, clicks and sign-ups of a web site, and lines of its access log.",
)

server_errors = Watch(
    "server_errors", web, where="properties.status >= 500", doc="Requests that failed, as they arrive."
)
