"""Top pages per day: a view without keys has one group in each bucket, and its answer is a ranking."""

from __future__ import annotations

from tidemark import Count, TopK, View
from views.catalog.web import web

top_pages = View(
    "top_pages",
    source=web,
    grain="1d",
    where="name in ('page_view', 'request')",
    answers={
        "hits": Count(),
        # Exact as long as a day has no more different urls than `room`. More room makes larger states.
        "pages": TopK("properties.url", k=10, room=1_000),
        # Expressions are Spark SQL. Requests without a referrer are null, and a ranking ignores null.
        "referrers": TopK("lower(properties.referrer)", k=5),
    },
    doc="The ten most visited pages of a day, and where their visitors came from.",
)
