"""Newline-delimited JSON: each line is an event as it is."""

from __future__ import annotations

from typing import Any, cast

from master_dataset.events.envelope import parse_json
from master_dataset.importer.formats import ImportFormat


class NdjsonReader:
    """Reads `{"name": "click", "user_id": "7"}`."""

    format = ImportFormat.NDJSON
    context = b""

    def is_event(self, raw: bytes) -> bool:
        """Blank lines are left out."""
        return bool(raw) and not raw.isspace()

    def read(self, raw: bytes) -> dict[str, Any]:
        """The line's JSON. Whether it is an object is for the source's validator to say."""
        return cast("dict[str, Any]", parse_json(raw))
