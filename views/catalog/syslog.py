"""Messages of syslog, as the ports of the collector store them."""

from __future__ import annotations

from tidemark import Source

syslog = Source(
    "syslog",
    fields="""
        event_id string,
        event_time timestamp,
        facility int,
        severity int,
        hostname string,
        app_name string,
        proc_id string,
        msg_id string,
        message string,
        structured_data map<string, string>,
        trace_id string,
        span_id string,
        trace_flags string,
        sender string,
        transport string,
        received_at timestamp
    """,
    retention_hours=48,  # in Kafka; the master dataset keeps everything
    doc="Messages of syslog (RFC 5424 and RFC 3164).",
)
