"""What OpenAPI says of alerts and watches."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
TIME: Json = {"type": "string", "format": "date-time"}
MAYBE_TIME: Json = {"anyOf": [TIME, {"type": "null"}]}
KEY: Json = {"type": "object", "description": "The values of the view's keys, by name."}
VALUE: Json = {"type": "object", "description": "The numbers by which it is so."}
TEXT: Json = {"type": "string"}


def alert_schemas() -> Json:
    """An alert, an episode, a watch."""
    is_open = _object({"id": TEXT, "key": KEY, "since": TIME, "value": VALUE})
    return {
        "Alert": _object(
            {
                "name": TEXT, "doc": TEXT, "view": TEXT, "when": TEXT, "by": {"type": "array", "items": TEXT},
                "over": TEXT, "for": {"type": "integer", "minimum": 1},
                "state": TEXT | {"enum": ["ok", "pending", "firing"]}, "muted_until": MAYBE_TIME,
                "firing": {"type": "array", "items": is_open}, "pending": {"type": "array", "items": is_open},
            }
        ),
        "Episode": _object(
            {
                "id": TEXT, "alert": TEXT, "view": TEXT, "key": KEY,
                "state": TEXT | {"enum": ["pending", "firing", "resolved"]}, "from": TIME, "to": TIME,
                "pending_at": TIME, "fired_at": MAYBE_TIME, "resolved_at": MAYBE_TIME, "value": VALUE,
            }
        ),
        "Watch": _object(
            {
                "name": TEXT, "source": TEXT, "where": TEXT, "doc": TEXT,
                "matched": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "refused": {
                    "anyOf": [TEXT, {"type": "null"}],
                    "description": "Why it is not evaluated by the version of its source that is in force.",
                },
            }
        ),
    }  # fmt: skip


def listed(name: str, schema: str) -> Json:
    """An object with a list of these."""
    return _object({name: {"type": "array", "items": {"$ref": f"#/components/schemas/{schema}"}}})


LIMIT: Json = {
    "name": "limit", "in": "query", "description": "How many, the newest.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 50},
}  # fmt: skip


def _object(properties: Json) -> Json:
    return {"type": "object", "required": [*properties], "properties": properties}
