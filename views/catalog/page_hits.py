"""Page hits and unique visitors per url and hour: the smallest useful view. Begin here."""

from __future__ import annotations

from views.aggregates import Count, Distinct
from views.catalog.web import web
from views.view import View

page_hits = View(
    "page_hits",
    source=web,
    grain="1h",
    keys={"url": "properties.url"},
    # Browsers send page_view; `tidemark import` makes a request of each line of a web server's log.
    where="name in ('page_view', 'request')",
    answers={
        "hits": Count(),
        # A visitor who comes back in the next hour is one visitor of the day: the sketches of the hours are merged,
        # their numbers are never added.
        "visitors": Distinct("user_id"),
    },
    doc="Hits and unique visitors of each page.",
)
