"""Payments, minute by minute, and an alert on many that are declined."""

from tidemark import Alert, Count, Ratio, View

from .orders import orders

payments = View(
    "payments",
    source=orders,
    grain="1m",  # small buckets for the alert; queries may ask for hours and days
    keys={"method": "method"},
    answers={
        "attempts": Count(),
        "declined": Count(where="payment = 'declined'"),
        "decline_share": Ratio("declined", "attempts"),
    },
    doc="Payments by method, and how many were declined.",
)

many_declined = Alert(
    "many_declined",
    payments,
    when="declined >= 3",
    over="1h",
    doc="Three or more payments with one method were declined within an hour.",
)
