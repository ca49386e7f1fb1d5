"""Orders of a shop: what sells and who buys."""

from tidemark import Count, Derived, Distinct, Max, Ratio, Source, Sum, View

orders = Source(
    "orders",
    fields="""
        order_id string,
        ordered_at timestamp,
        customer string,
        country string,
        product string,
        quantity int,
        amount decimal(12, 2),
        method string,
        payment string
    """,
    id_field="order_id",  # an order that is sent twice counts once
    time_field="ordered_at",
    doc="Orders, each with its product, its customer and how it was paid.",
)

sales = View(
    "sales",
    source=orders,
    grain="1h",
    keys={"product": "product"},
    where="payment = 'accepted'",
    answers={
        "orders": Count(),
        "items": Sum("quantity"),
        "revenue": Sum("amount"),  # a decimal: exact to the cent
        "largest": Max("amount"),
        "per_order": Derived("revenue / orders"),
    },
    doc="Orders, items and revenue of each product.",
)

customers = View(
    "customers",
    source=orders,
    grain="1d",
    keys={"country": "country"},
    answers={
        "customers": Distinct("customer", exact=True, at_most=10_000),
        "orders": Count(),
        "orders_per_customer": Ratio("orders", "customers"),
    },
    doc="How many customers ordered in each country, and how often.",
)
