"""The view that both layers are measured with: per hour and url count, distinct users, sum and quantiles of ms."""

from __future__ import annotations

DECLARED = """
from views.aggregates import Count, Distinct, Quantiles, Sum
from views.source import Source
from views.view import View

hits = Source("hits", fields="event_id string, event_time timestamp, url string, user_id string, ms double")
reference = View(
    "reference", source=hits, grain="1h", keys={"url": "url"},
    answers={"hits": Count(), "users": Distinct("user_id"), "ms": Sum("ms"), "latency": Quantiles("ms")},
)
"""
