"""Syslog messages per host: how many there are, and how many are errors."""

from __future__ import annotations

from tidemark import Count, Last, TopK, View
from views.catalog.syslog import syslog

ERROR = "severity <= 3"  # emergency, alert, critical and error; the lower the number, the worse

host_messages = View(
    "host_messages",
    source=syslog,
    grain="1m",
    # A message without a host is named by its sender's address.
    keys={"host": "coalesce(hostname, sender, 'unknown')"},
    answers={
        "messages": Count(),
        "errors": Count(where=ERROR),
        "programs": TopK("app_name", k=5, where=ERROR),
        "last_error": Last("message", where=ERROR),
    },
    doc="Messages and errors of each host, the programs with most errors, and the latest error.",
)
