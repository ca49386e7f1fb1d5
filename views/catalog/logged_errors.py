"""Errors per service, over the log records of OpenTelemetry."""

from __future__ import annotations

from tidemark import Count, Distinct, Last, Ratio, View
from views.catalog.otel_logs import otel_logs

ERROR = "severity_number >= 17"  # ERROR is 17 to 20, FATAL is 21 to 24

logged_errors = View(
    "logged_errors",
    source=otel_logs,
    grain="1m",
    keys={"service": "coalesce(service, 'unknown')"},
    answers={
        "records": Count(),
        "errors": Count(where=ERROR),
        "error_share": Ratio("errors", "records"),
        "traces": Distinct("trace_id", where=ERROR),
        "last_error": Last("body", where=ERROR),
    },
    doc="Log records and errors of each service, the traces that errors belong to, and the latest error.",
)
