"""Page hits and unique visitors per url and hour: the smallest useful view. Begin here."""

from __future__ import annotations

from tidemark import Alert, Count, Distinct, View
from views.catalog.web import web

page_hits = View(
    "page_hits",
    source=web,
    grain="1h",
    keys={"url": "properties.url"},
    # Browsers send page_view; `tidemark import` turns each line of a web server's log into a request.
    where="name in ('page_view', 'request')",
    answers={
        "hits": Count(),
        # A visitor who returns in the next hour is one visitor of the day: the sketches of the hours are merged, their
        # numbers are never added.
        "visitors": Distinct("user_id"),
    },
    doc="Hits and unique visitors of each page.",
)

fewer_hits = Alert(
    "fewer_hits",
    page_hits,
    when="previous_hits >= 1000 and hits < 0.5 * previous_hits",
    by=(),
    compare="1d",
    settled=True,  # every hour begins with few hits: evaluate it when it is over
    doc="The site had less than half the hits of the same hour a day before.",
)

no_visits = Alert("no_visits", page_hits, by=(), silence="2h", doc="No page was requested for two hours.")
