"""Sign-ups and conversion: answers with conditions of their own, and an answer computed from two others."""

from __future__ import annotations

from tidemark import Count, Distinct, First, Ratio, View
from views.catalog.web import web

signups = View(
    "signups",
    source=web,
    grain="1d",
    # A key is an expression too: `https://news.example/a?b` -> `news.example`. Without a referrer: `direct`.
    keys={"site": "coalesce(nullif(split_part(properties.referrer, '/', 3), ''), 'direct')"},
    answers={
        "visitors": Distinct("user_id"),
        "signups": Count(where="name = 'signup'"),
        # Divided after both numbers were merged, so it is right for an hour, a day or a year.
        "conversion": Ratio("signups", "visitors"),
        "first_signup": First("event_time", where="name = 'signup'"),
    },
    doc="Visitors, sign-ups and the share of visitors who sign up, by the site that they come from.",
)
