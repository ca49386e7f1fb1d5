"""A view's declaration as text: a version that is no longer declared is computed until it is retired."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from views import aggregates
from views.derived import Derived
from views.errors import DeclarationError
from views.source import Source
from views.view import View


def to_text(view: View) -> str:
    """What was declared, as JSON, with the reading of its source."""
    declared = {
        "name": view.name,
        "keys": dict(view.keys),
        "grain": view.grain,
        "where": view.where,
        "answers": {name: {"is": type(answer).__name__, **asdict(answer)} for name, answer in view.answers.items()},
        "source": view.source.reading,
    }
    return json.dumps(declared, indent=1)


def from_text(text: str, source: Source, first: Callable[[], Source] | None = None) -> View:
    """The view, over the source as it is declared now, or with its own reading where that had another version.

    `first`: the source with its first reading, for declarations that are older than readings. DeclarationError if that
    source lacks a field.
    """
    try:
        declared = json.loads(text)
        reading = declared.get("source")
        if reading is None and source.version > 1 and first is not None:
            source = first()
        elif reading is not None and (reading["version"], source.version) != (1, 1):
            stored = source.with_reading(reading)
            source = source if stored.meaning == source.meaning else stored
        answers = {name: _answer(dict(given)) for name, given in declared["answers"].items()}
        return View(
            declared["name"],
            source=source,
            keys=declared["keys"],
            grain=declared["grain"],
            where=declared["where"],
            answers=answers,
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DeclarationError(f"This is not a stored declaration of a view ({error}): {text[:200]!r}") from None


def _answer(given: dict[str, Any]) -> Any:
    kind = given.pop("is")
    made: Any = Derived if kind == "Derived" else getattr(aggregates, kind)
    return made(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})
