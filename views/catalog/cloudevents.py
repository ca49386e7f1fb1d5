"""Events of services that speak CloudEvents, as `POST /cloudevents/cloudevents` stores them."""

from __future__ import annotations

from tidemark import Source

cloudevents = Source(
    "cloudevents",
    fields="""
        event_id string,
        event_time timestamp,
        source string,
        type string,
        subject string,
        datacontenttype string,
        dataschema string,
        data map<string, string>,
        data_text string,
        data_base64 string,
        traceparent string,
        extensions map<string, string>
    """,
    # A map takes the data of any service: numbers as text, objects as JSON text. For sums, declare a source of your own
    # with a struct instead. Data that are no JSON object are in data_text.
    doc="CloudEvents 1.0 of any type.",
)
