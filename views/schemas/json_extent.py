"""How much a validator of a JSON schema may have to do: definitions that use the next one twice double it each time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urljoin

import jsonschema_rs

from views.schemas.json_comparison import BASE_URI, Document

MAX_STEPS = 100_000
"""Nothing is counted any further."""
MAX_DEPTH = 200
PATTERN_STEPS = 10
"""To match a name with a pattern takes as long as so many other steps."""

BUDGET, SEARCH_COST = 1_000_000, 1_000
"""How many schemas are counted, and how many of them a reference costs that does not say where its target is."""
FIRST_DRAFT, LAST_WITHOUT_SIBLINGS = 4, 7
"""The first draft of those that are known, and the last one in which members beside $ref mean nothing."""

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_SCHEMAS = ("not", "if", "then", "else", "additionalProperties", "unevaluatedProperties", "propertyNames")
_OF_ELEMENTS = ("additionalItems", "unevaluatedItems", "contains")
_LISTS = ("allOf", "anyOf", "oneOf")
_BY_NAME = ("dependencies", "dependentSchemas")


def steps(document: Document) -> int:
    """How many schemas are evaluated at most on the way to one innermost part of a value, or MAX_STEPS if it is more.

    A definition within itself counts once: a validator remembers what it said of each part of a value.
    """
    return _Count(document).of(document.content, BASE_URI, 0)


class _Count:
    def __init__(self, document: Document) -> None:
        addressed = [(BASE_URI, document.content), *document.resources]
        self._draft = document.draft
        self._name_of_base = "id" if document.draft == FIRST_DRAFT else "$id"
        self._registry = jsonschema_rs.Registry(addressed, draft=document.draft)
        self._documents: dict[str, Any] = {}
        for address, content in addressed:
            self._documents.setdefault(address, content)
            self._documents.setdefault(self._base(content, address), content)
        self._known: dict[int | tuple[str, str], int] = {}
        self._budget = BUDGET

    def of(self, schema: Any, base: str, depth: int) -> int:
        """The steps of a schema whose references are relative to `base`."""
        if not isinstance(schema, dict):
            return 1
        self._budget -= 1
        if depth > MAX_DEPTH or self._budget < 0:
            return MAX_STEPS
        if self._draft <= LAST_WITHOUT_SIBLINGS and isinstance(schema.get("$ref"), str):
            return min(1 + self._referred(schema["$ref"], base, depth), MAX_STEPS)
        base = self._base(schema, base)
        references = [schema[word] for word in _REFERENCES if isinstance(schema.get(word), str)]
        found = 1 + sum(self._referred(each, base, depth) for each in references)
        found += sum(self.of(each, base, depth + 1) for each in _for_the_same_part(schema))
        by_pattern = _members(schema, "patternProperties")
        found += sum(PATTERN_STEPS + self.of(each, base, depth + 1) for each in by_pattern)
        # Of these a part of a value meets one.
        for others in (_members(schema, "properties"), _elements(schema, "items"), _elements(schema, "prefixItems")):
            found += max((self.of(each, base, depth + 1) for each in others), default=0)
        return min(found, MAX_STEPS)

    def _referred(self, reference: str, base: str, depth: int) -> int:
        address, _, pointer = (base + reference if reference[:1] == "#" else urljoin(base, reference)).partition("#")
        if address in self._documents and pointer[:1] in ("", "/"):
            try:
                target, inner = self._at(pointer, address)
            except (LookupError, TypeError, ValueError):
                return MAX_STEPS  # a validator finds it by other means, and what it does there is not known
            return self._once(id(target), target, inner, depth)
        key = base, reference
        if key in self._known:
            return self._known[key]
        # An anchor, or a document within a document.
        self._budget -= SEARCH_COST
        if self._budget < 0:
            return MAX_STEPS
        try:
            found = self._registry.resolver(base).lookup(reference)
        except jsonschema_rs.ReferencingError:
            return MAX_STEPS
        return self._once(key, found.contents, found.resolver.base_uri, depth)

    def _once(self, key: int | tuple[str, str], schema: Any, base: str, depth: int) -> int:
        if key not in self._known:
            self._known[key] = 1  # while it is counted: what it says of itself
            self._known[key] = self.of(schema, base, depth + 1)
        return self._known[key]

    def _base(self, schema: Any, base: str) -> str:
        """What references in a schema are relative to, if those beside it are relative to `base`."""
        own = schema.get(self._name_of_base) if isinstance(schema, dict) else None
        return urljoin(base, own).rstrip("#") if isinstance(own, str) and not own.startswith("#") else base

    def _at(self, pointer: str, address: str) -> tuple[Any, str]:
        """`/definitions/a` -> that part of a document, and what references in it are relative to."""
        found, base = self._documents[address], address
        for step in unquote(pointer).split("/")[1:]:
            base = self._base(found, base)
            name = step.replace("~1", "/").replace("~0", "~")
            found = found[int(name)] if isinstance(found, list) else found[name]
        return found, base


def _for_the_same_part(schema: dict[str, Any]) -> Iterator[Any]:
    """What is evaluated beside each other."""
    for word in (*_SCHEMAS, *_OF_ELEMENTS):
        if word in schema:
            yield schema[word]
    if isinstance(schema.get("items"), dict):
        yield schema["items"]
    for word in _LISTS:
        yield from _elements(schema, word)
    for word in _BY_NAME:
        yield from _members(schema, word)


def _members(schema: dict[str, Any], word: str) -> list[Any]:
    found = schema.get(word)
    return list(found.values()) if isinstance(found, dict) else []


def _elements(schema: dict[str, Any], word: str) -> list[Any]:
    found = schema.get(word)
    return found if isinstance(found, list) else []
