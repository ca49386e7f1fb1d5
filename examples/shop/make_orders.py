"""Write data/orders.ndjson: 500 orders of October 2026, some of them late, some sent twice. Always the same file."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

CENTS = {"espresso": 1290, "filter": 950, "grinder": 8900, "kettle": 4550, "mug": 1425}
COUNTRIES = ("AT", "CH", "DE", "FR", "IT")
METHODS = ("card", "invoice", "wallet")
FIRST_DAY = datetime(2026, 10, 1, tzinfo=UTC)
ORDERS = 500
SENT_TWICE = 25
LATE = 40


def order(number: int, random_source: random.Random) -> dict[str, object]:
    """One order; the customer decides the country."""
    customer = random_source.randrange(120)
    product = random_source.choice(sorted(CENTS))
    quantity = random_source.choice((1, 1, 1, 2, 3))
    ordered_at = FIRST_DAY + timedelta(minutes=random_source.randrange(31 * 24 * 60))
    return {
        "order_id": f"o-{number:04}",
        "ordered_at": ordered_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "customer": f"c-{customer:03}",
        "country": COUNTRIES[customer % len(COUNTRIES)],
        "product": product,
        "quantity": quantity,
        "amount": quantity * CENTS[product] / 100,
        "method": random_source.choice(METHODS),
        "payment": "declined" if random_source.random() < 0.06 else "accepted",
    }


def lines() -> list[str]:
    """The orders by time; then some that arrive late, and some for the second time."""
    random_source = random.Random(2026)  # noqa: S311 - data of an example, the same every time
    orders = [order(number, random_source) for number in range(ORDERS)]
    late = random_source.sample(orders, LATE)
    on_time = [each for each in orders if each not in late]
    again = random_source.sample(on_time, SENT_TWICE)
    in_order = sorted(on_time, key=lambda each: (str(each["ordered_at"]), str(each["order_id"])))
    return [json.dumps(each) for each in (*in_order, *late, *again)]


if __name__ == "__main__":
    target = Path(__file__).parent / "data" / "orders.ndjson"
    target.write_text("\n".join(lines()) + "\n", encoding="utf-8")
