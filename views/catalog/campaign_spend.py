"""Spend per campaign: online advertising, where money is a decimal and is never rounded."""

from __future__ import annotations

from tidemark import Count, Derived, Ratio, Source, Sum, View

ads = Source(
    "ads",
    fields="""
        event_id string,
        event_time timestamp,
        campaign string,
        action string,
        cost decimal(12, 6)
    """,
    doc="Impressions and clicks of advertisements, each with what it cost.",
)

campaign_spend = View(
    "campaign_spend",
    source=ads,
    grain="1h",
    keys={"campaign": "campaign"},
    answers={
        "impressions": Count(where="action = 'impression'"),
        "clicks": Count(where="action = 'click'"),
        # Sums of decimals are exact, and are texts in JSON: "0.100000" + "0.200000" = "0.300000".
        "spend": Sum("cost"),
        "click_rate": Ratio("clicks", "impressions"),
        # Derived answers are doubles, for charts and comparisons. Without a click this one is null.
        "cost_per_click": Derived("spend / clicks"),
    },
    doc="Impressions, clicks and spend of each campaign, exact to the last digit.",
)
