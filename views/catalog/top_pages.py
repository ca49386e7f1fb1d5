"""Top pages per day: a view without keys has one group a bucket; here a ranking is its answer."""

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
        # Exact as long as a day has no more different urls than `room`. That is also what it costs: more room, more
        # bytes in each state.
        "pages": TopK("properties.url", k=10, room=1_000),
        # `lower` and the like are Spark SQL. Links without a referrer are null, and null is in no ranking.
        "referrers": TopK("lower(properties.referrer)", k=5),
    },
    doc="The ten most visited pages of a day, and where their visitors came from.",
)
