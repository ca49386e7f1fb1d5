"""Latency quantiles per page, which show what an average hides."""

from __future__ import annotations

from tidemark import Alert, Count, Histogram, Quantiles, Ratio, View
from views.catalog.web import web

page_latency = View(
    "page_latency",
    source=web,
    grain="1h",
    keys={"url": "properties.url"},
    where="properties.ms >= 0",  # null counts as false: requests without a duration are ignored
    answers={
        "requests": Count(),
        # Each is within 1 % of the value with that rank, however the requests were split over machines and time.
        "ms": Quantiles("properties.ms", at=(0.5, 0.95, 0.99), error=0.01),
        # Exact, if the bounds are known beforehand: below 100 ms, 100 to 300, 300 to 1000, above.
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
