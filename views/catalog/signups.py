"""Sign-ups and conversion: each answer may look at other events, and answers may be computed from answers."""

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
        # Divided when it is asked for, after both numbers were merged: right over an hour, a day or a year alike.
        "conversion": Ratio("signups", "visitors"),
        "first_signup": First("event_time", where="name = 'signup'"),
    },
    doc="Visitors, sign-ups and the share of visitors who sign up, by the site that they come from.",
)
