"""JSON texts with a checksum of themselves: a changed byte is noticed, not believed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

SEAL = "sum"


def seal(value: Mapping[str, Any], *, indent: int | None = None) -> str:
    """`value` as JSON with its checksum: {"run": 1} -> {"run":1,"sum":"0c4e..."}. One line unless indented."""
    sealed = {**value, SEAL: checksum(value)}
    return json.dumps(sealed, indent=indent, separators=None if indent else (",", ":"), allow_nan=False)


def unseal(text: str | bytes) -> dict[str, Any] | None:
    """The value, without its checksum; None where that is missing or wrong, or the text is no JSON object."""
    try:
        sealed = json.loads(text)
        given = sealed.pop(SEAL)
        return dict(sealed) if given == checksum(sealed) else None
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return None


def checksum(value: Mapping[str, Any]) -> str:
    """Of the value, whatever its spelling: the order of keys and white space do not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
