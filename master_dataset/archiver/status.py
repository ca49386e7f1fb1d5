"""What the archiver says of itself, and of each source that it follows: a file in the home, written every second."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.home import Home, read_json, write_json
from infra.settings import Settings
from infra.stack.services import check_heartbeat


def status_file(settings: Settings) -> Path:
    """Where it is, for `tidemark status`, `tidemark master status` and the supervisor."""
    return Home(settings.home).run / "archiver.json"


def write_status(settings: Settings, sources: Mapping[str, Mapping[str, Any]], error: str = "") -> None:
    """Tell the others. The supervisor takes a status that is too old for a process that hangs."""
    write_json(status_file(settings), {"at": time.time(), "error": error, "sources": sources})


def said_of(settings: Settings, source: str) -> str:
    """What the archiver does with a source now, in a few words; if it is refused, why and what to do."""
    status = read_json(status_file(settings)) or {"error": "", "sources": {}}
    refused = status["error"] or status["sources"].get(source, {}).get("refused")
    if refused:
        return f"refuses it: {refused}"
    missing = check_heartbeat(status_file(settings))
    if missing:
        return missing
    return "follows it" if source in status["sources"] else "does not know it yet: it was declared since the start"
