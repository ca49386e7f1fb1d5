"""Latency quantiles per page: what an average hides. Quantiles of parts can be merged, averages of them cannot."""

from __future__ import annotations

from tidemark import Alert, Count, Histogram, Quantiles, Ratio, View
from views.catalog.web import web

page_latency = View(
    "page_latency",
    source=web,
    grain="1h",
    keys={"url": "properties.url"},
    where="properties.ms >= 0",  # null is not true either: requests without a time are not looked at
    answers={
        "requests": Count(),
        # Each within 1 % of a request that has that rank, however the requests were split over machines and time.
        "ms": Quantiles("properties.ms", at=(0.5, 0.95, 0.99), error=0.01),
        # Exact, for those who know their limits beforehand: below 100 ms, 100 to 300, 300 to 1000, above.
        "spread": Histogram("properties.ms", bounds=(100, 300, 1000)),
        "slow": Count(where="properties.ms >= 1000"),
        "slow_share": Ratio("slow", "requests"),
    },
    doc="How long each page takes: median, 95th and 99th percentile, and how many requests were slow.",
)

slow_page = Alert(
    "slow_page",
    page_latency,
    when="requests >= 20 and p95_ms > 800",  # the quantiles of `ms` are p50_ms, p95_ms and p99_ms
    doc="Of the requests for a page in an hour, at least one in twenty takes longer than 800 ms.",
)
