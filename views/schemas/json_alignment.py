"""Write a JSON schema so that it names the properties that another one names: containment is proven by name.

Input: `{"additionalProperties": {"type": "string"}}`, beside a schema that has the property `a`. Output, which takes
the same values: `{"additionalProperties": {"type": "string"}, "properties": {"a": {"type": "string"}}}`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MAX_NAMES = 2_000
"""How many names an object is given; beyond that it stays as it is."""


def aligned(schema: Any, other: Any, matches: Callable[[str, str], bool]) -> Any:
    """A schema that takes the values of `schema`, with the names of `other`. `matches` is asked for (pattern, name)."""
    if not isinstance(schema, dict) or not isinstance(other, dict) or "$ref" in schema:
        return schema
    own, others = _object(schema, "properties"), _object(other, "properties")
    named = {name: aligned(inner, others[name], matches) if name in others else inner for name, inner in own.items()}
    if len(others) <= MAX_NAMES:
        for name in others:
            if name not in own and (inner := _of_unnamed(schema, name, matches)) is not None:
                named[name] = aligned(inner, others[name], matches)
    result = {**schema, "properties": named} if named else dict(schema)
    for member in ("items", "additionalProperties", "not"):
        if member in schema and member in other:
            result[member] = aligned(schema[member], other[member], matches)
    return result


def _of_unnamed(schema: dict[str, Any], name: str, matches: Callable[[str, str], bool]) -> Any:
    """What the schema says of a property that it does not name; None if it says nothing."""
    patterns = _object(schema, "patternProperties")
    matching = [inner for pattern, inner in patterns.items() if matches(pattern, name)]
    if matching:
        return matching[0] if len(matching) == 1 else {"allOf": matching}
    return schema.get("additionalProperties")


def _object(schema: dict[str, Any], member: str) -> dict[str, Any]:
    value = schema.get(member)
    return value if isinstance(value, dict) else {}
