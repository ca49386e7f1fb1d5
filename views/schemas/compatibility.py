"""Whether a new version of a schema fits the versions before it, by the level that is set for them."""

from __future__ import annotations

from collections.abc import Sequence

from views.schemas.model import InvalidSchema, ParsedSchema

LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")


def incompatibilities(reader: ParsedSchema, writer: ParsedSchema) -> list[str]:
    """Why the reader cannot read what the writer wrote; empty if it can."""
    if reader.type != writer.type:
        return [f"the reader is of type {reader.type}, and the writer of type {writer.type}"]
    return reader.unreadable(writer)


def check(level: str, new: ParsedSchema, older: Sequence[ParsedSchema]) -> list[str]:
    """Why a new schema must not follow the older ones (the oldest first) at a level; empty if it may.

    BACKWARD: the new schema reads what older ones wrote. FORWARD: older ones read what the new one writes. FULL: both.
    The last of the older ones counts, and with _TRANSITIVE all of them.
    """
    if level not in LEVELS:
        raise InvalidSchema(f"'{level}' is no level of compatibility. Write one of {', '.join(LEVELS)}.")
    direction, _, transitive = level.partition("_")
    problems: list[str] = []
    for old in reversed(older if transitive else older[-1:]):
        if direction in ("BACKWARD", "FULL"):
            problems += [f"the new schema does not read an older one: {text}" for text in incompatibilities(new, old)]
        if direction in ("FORWARD", "FULL"):
            problems += [f"an older schema does not read the new one: {text}" for text in incompatibilities(old, new)]
    return list(dict.fromkeys(problems))
