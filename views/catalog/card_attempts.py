"""Card verification attempts per 5 seconds: many in a row on one card are a sign of fraud."""

from __future__ import annotations

from tidemark import Alert, Count, Distinct, Feed, Max, Source, Sum, View

cards = Source(
    "cards",
    fields="""
        event_id string,
        event_time timestamp,
        card string,
        merchant string,
        outcome string,
        amount decimal(10, 2)
    """,
    doc="Attempts to verify a payment card. `card` is a token: never send card numbers to an analytics system.",
)

card_attempts = View(
    "card_attempts",
    source=cards,
    grain="5s",  # small buckets for the alert; queries may ask for minutes and hours
    keys={"card": "card"},
    where="card is not null",
    answers={
        "attempts": Count(),
        "declined": Count(where="outcome = 'declined'"),
        # Exact, because a group has few merchants. A group with more than 50 answers null.
        "merchants": Distinct("merchant", exact=True, at_most=50),
        "amount": Sum("amount", where="outcome = 'approved'"),
        "largest": Max("amount"),
    },
    doc="Attempts on each card within 5 seconds, how many were declined, and at how many merchants.",
)

many_attempts = Alert(
    "many_attempts",
    card_attempts,
    when="attempts > 3",
    doc="A card was tried more than three times within 5 seconds.",
)

attempts_feed = Feed("attempts_feed", card_attempts, doc="The attempts on each card, for the systems that block cards.")
