"""Prove part by part that one JSON schema takes every value of another: for schemas that refer to themselves.

A pair of schemas that comes again further inside is taken for proven there: a value that breaks the proof has finite
depth, so it would have to break it without such a pair, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote

MAX_PAIRS = 5_000

_ANNOTATIONS = {"title", "description", "default", "examples", "$comment", "definitions", "$defs", "$schema", "format"}
_UNDERSTOOD = {"type", "properties", "required", "additionalProperties", "items", *_ANNOTATIONS}
_REFERENCES = {"$ref", "$dynamicRef", "$recursiveRef"}
_LAST_WITHOUT_SIBLINGS = 7  # the last draft in which members beside $ref mean nothing


class Recursion:
    """A proof about two documents of one draft. `covers` proves it for schemas that refer to nothing."""

    def __init__(self, reader: Any, writer: Any, draft: int, covers: Callable[[Any, Any], bool]) -> None:
        self._reader, self._writer = reader, writer
        self._draft = draft
        self._covers = covers
        self._pairs: dict[tuple[int, int], bool] = {}

    def is_proven(self) -> bool:
        """Whether the reader is proven to take every value of the writer."""
        for part in (*_inner(self._reader), *_inner(self._writer)):
            if isinstance(part.get("$id"), str) or isinstance(part.get("id"), str):
                return False  # a base of its own: a reference in it may mean another document
        return self._takes(self._reader, self._writer)

    def _takes(self, reader: Any, writer: Any) -> bool:
        reader, writer = self._target(reader, self._reader), self._target(writer, self._writer)
        if reader is None or writer is None or len(self._pairs) > MAX_PAIRS:
            return False
        if reader is True or reader == {} or writer is False:
            return True
        pair = (id(reader), id(writer))
        if pair not in self._pairs:
            self._pairs[pair] = True
            self._pairs[pair] = self._compared(reader, writer)
        return self._pairs[pair]

    def _compared(self, reader: Any, writer: Any) -> bool:
        if not _refers(reader) and not _refers(writer):
            return self._covers(reader, writer)
        if not isinstance(reader, dict) or not isinstance(writer, dict) or not reader.keys() <= _UNDERSTOOD:
            return False
        return (
            _types(reader) >= _types(writer)
            and set(reader.get("required", ())) <= set(writer.get("required", ()))
            and all(self._takes(inner, self._of_name(writer, name)) for name, inner in _named(reader).items())
            and ("additionalProperties" not in reader or self._takes_unnamed(reader, writer))
            and ("items" not in reader or self._takes_items(reader["items"], writer))
        )

    @staticmethod
    def _of_name(writer: dict[str, Any], name: str) -> Any:
        if name in _named(writer):
            return _named(writer)[name]
        return True if writer.get("patternProperties") else writer.get("additionalProperties", True)

    def _takes_unnamed(self, reader: dict[str, Any], writer: dict[str, Any]) -> bool:
        written = [inner for name, inner in _named(writer).items() if name not in _named(reader)]
        written += writer.get("patternProperties", {}).values()
        written.append(writer.get("additionalProperties", True))
        return all(self._takes(reader["additionalProperties"], inner) for inner in written)

    def _takes_items(self, items: Any, writer: dict[str, Any]) -> bool:
        written = writer.get("items", True)
        if isinstance(items, list) or isinstance(written, list) or "prefixItems" in writer:
            return False
        return self._takes(items, written)

    def _target(self, schema: Any, root: Any) -> Any:
        """What a schema refers to in its own document, and itself if to nothing; None if that is not known here."""
        for _ in range(10):  # a reference to a reference to a reference …
            if not isinstance(schema, dict) or "$ref" not in schema:
                return schema
            reference = schema["$ref"]
            beside = schema.keys() - {"$ref"} - _ANNOTATIONS
            if not isinstance(reference, str) or (beside and self._draft > _LAST_WITHOUT_SIBLINGS):
                return None
            schema = _at(reference, root)
        return None


def _at(reference: str, root: Any) -> Any:
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    found = root
    for step in unquote(reference[2:]).split("/"):
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


def _inner(schema: Any) -> Iterable[dict[str, Any]]:
    """All objects inside a schema, without itself."""
    level = [schema]
    while level:
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ())
        ]
        yield from (item for item in level if isinstance(item, dict))


def _refers(schema: Any) -> bool:
    return isinstance(schema, dict) and any(_REFERENCES & part.keys() for part in (schema, *_inner(schema)))


def _named(schema: dict[str, Any]) -> dict[str, Any]:
    named = schema.get("properties", {})
    return named if isinstance(named, dict) else {}


def _types(schema: dict[str, Any]) -> set[str]:
    types = schema.get("type", ["null", "boolean", "number", "string", "array", "object"])
    listed = {types} if isinstance(types, str) else set(types)
    return listed | ({"integer"} if "number" in listed else set())
