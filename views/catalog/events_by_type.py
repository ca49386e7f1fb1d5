"""CloudEvents by source and type: what each service sends, and how much of it."""

from __future__ import annotations

from tidemark import Count, Distinct, Last, View
from views.catalog.cloudevents import cloudevents

events_by_type = View(
    "events_by_type",
    source=cloudevents,
    grain="1h",
    # An event is identified by its type and by who sends it: two services may use one name for two things.
    keys={"source": "source", "type": "type"},
    answers={"events": Count(), "subjects": Distinct("subject"), "last_schema": Last("dataschema")},
    doc="CloudEvents of each source and type, how many subjects they are about, and their latest schema.",
)
