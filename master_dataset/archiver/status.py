"""The archiver's status of each source, for the command line and the REST interface."""

from __future__ import annotations

from pathlib import Path

from infra.process_status import check_heartbeat, read_status, status_path
from infra.settings import Settings


def status_file(settings: Settings) -> Path:
    """The status file, for `tidemark status`, `tidemark master status` and the supervisor."""
    return status_path(settings, "archiver")


def status_text(settings: Settings, source: str) -> str:
    """What the archiver does with a source now, in a few words; if it is refused, the reason and what to do."""
    status = read_status(status_file(settings))
    sources = {} if status is None else status.sources
    refused = (status and status.error) or sources.get(source, {}).get("refused")
    if refused:
        return f"refuses it: {refused}"
    missing = check_heartbeat(status_file(settings))
    if missing:
        return missing
    return "archives it" if source in sources else "does not know it yet: it was declared after the archiver started"
