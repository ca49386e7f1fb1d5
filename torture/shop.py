"""The views under torture: a shop's orders, by hour, by day and by minute; and an alert on them."""

from __future__ import annotations

from views.aggregates import Average, Count, Distinct, First, Last, Max, Min, Quantiles, Sum, TopK
from views.alert import Alert
from views.derived import Ratio
from views.source import Source
from views.view import View

shop = Source(
    "shop",
    fields="event_id string, event_time timestamp, user_id string, item string, paid boolean, cents int, ms double, "
    "tries int",
)
sales = View(
    "sales",
    source=shop,
    grain="1h",
    keys={"item": "item", "paid": "paid"},
    answers={
        "orders": Count(),
        "large": Count(where="cents >= 99"),
        "share": Ratio("large", "orders"),
        "cents": Sum("cents"),
        "users": Distinct("user_id"),
        "ms": Quantiles("ms"),
        "last": Last("user_id"),
    },
)
totals = View("totals", source=shop, grain="1d", answers={"events": Count(), "users": Distinct("user_id")})
minutes = View(
    "minutes",
    source=shop,
    grain="1m",
    keys={"user": "user_id"},
    where="cents is not null",
    answers={
        "least": Min("cents"),
        "most": Max("cents"),
        "average": Average("cents"),
        "first": First("item"),
        "items": TopK("item", k=3, room=100),
    },
)
# A count only grows, so in the end it is known which alerts must have fired (torture/alert_check.py).
popular = Alert("popular", sales, when="orders >= 20", over="1d")
