"""Log records of OpenTelemetry, as `POST /v1/logs` stores them."""

from __future__ import annotations

from tidemark import Source

otel_logs = Source(
    "otel_logs",
    fields="""
        event_id string,
        event_time timestamp,
        observed_time timestamp,
        service string,
        severity_number int,
        severity_text string,
        event_name string,
        body string,
        attributes map<string, string>,
        resource map<string, string>,
        scope_name string,
        scope_version string,
        scope_attributes map<string, string>,
        trace_id string,
        span_id string,
        flags bigint,
        dropped_attributes_count bigint
    """,
    retention_hours=48,  # in Kafka; the master dataset keeps everything
    doc="Log records of OpenTelemetry's exporters and collectors.",
)
