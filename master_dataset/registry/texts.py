"""The text of a schema as people read it, and what differs between two."""

from __future__ import annotations

import json
from difflib import unified_diff

from master_dataset.registry.schemas import PROTOBUF


def readable(type: str, text: str) -> str:
    """The text with a line for each part. `{"type":"string"}` -> three lines."""
    if type == PROTOBUF:
        return text.rstrip()
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def difference(before: str, after: str, names: tuple[str, str] = ("", ""), context: int = 3) -> list[str]:
    """The lines that differ between two readable texts, as a unified diff."""
    lines = before.splitlines(), after.splitlines()
    return list(unified_diff(*lines, *names, n=context, lineterm=""))
