"""Errors per service: operational monitoring, over the log entries of many services."""

from __future__ import annotations

from tidemark import Alert, Count, Derived, Distinct, Last, Source, View

logs = Source(
    "logs",
    fields="""
        event_id string,
        event_time timestamp,
        service string,
        host string,
        level string,
        message string
    """,
    retention_hours=48,  # in Kafka; the master dataset keeps everything
    doc="Log entries of services: service, host, level and message.",
)

ERROR = (
    "lower(level) in ('error', 'fatal')"  # declarations are Python: an expression that is used twice can have a name
)

service_errors = View(
    "service_errors",
    source=logs,
    grain="1m",
    keys={"service": "service"},
    answers={
        "entries": Count(),
        "errors": Count(where=ERROR),
        "error_percent": Derived("errors / entries * 100"),
        "hosts": Distinct("host", where=ERROR),
        # The latest by event time, not by arrival: a late entry does not replace a newer one.
        "last_error": Last("message", where=ERROR),
    },
    doc="Errors of each service, their share of all entries, how many hosts have them, and the latest one.",
)

failing_service = Alert(
    "failing_service",
    service_errors,
    when="entries >= 10 and error_percent > 5",
    for_buckets=3,
    doc="For three minutes in a row, more than 5 % of a service's entries were errors.",
)
