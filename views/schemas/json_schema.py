"""JSON schemas: what their texts say, and which values they take."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import urljoin

import jsonschema_rs

from views.schemas import json_text
from views.schemas.json_comparison import BASE_URI, DRAFTS, PATTERNS, Document, compare, first_line, without_dialect
from views.schemas.model import JSON, InvalidSchema, NamedSchema, ParsedSchema, check_sizes

DEFAULT_DRAFT = 7
DIALECTS: Mapping[str, int] = {
    "json-schema.org/draft-04/schema": 4,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft/2019-09/schema": 19,
    "json-schema.org/draft/2020-12/schema": 20,
}
_MISSING = re.compile(r"Resource '(.*?)' is not present", re.DOTALL)


class JsonSchema(ParsedSchema):
    """A JSON schema. `format` is an annotation in it, in all drafts: it refuses no value."""

    type = JSON

    def __init__(self, text: str, references: Sequence[NamedSchema] = ()) -> None:
        check_sizes(JSON, text, references)
        self.json = _content(text, "JSON schema")
        self.draft = _draft(self.json)
        self.canonical = json_text.write(self.json)
        self.document = Document(self.json, self.draft, _resources(self.json, references))
        # Built at once: whether a schema is valid, and all that it refers to is there, is seen by nothing less.
        self.validator = _validator(self.document)

    @cached_property
    def normalized(self) -> str:
        """The canonical text with all members sorted by name."""
        return json_text.write(self.json, sort=True)

    def unreadable(self, writer: ParsedSchema) -> list[str]:
        """Why the values of the writer are not proven to be among the values of this schema."""
        if not isinstance(writer, JsonSchema):
            raise TypeError(f"a JSON schema is compared with JSON schemas, and not with {writer.type}")
        return compare(self.document, writer.document)


def _content(text: str, what: str) -> Any:
    content = json_text.read(text, what)
    if not isinstance(content, dict | bool):
        raise InvalidSchema(f"{what} is neither an object nor true nor false, but {json_text.write(content)[:100]}.")
    return content


def _draft(content: Any) -> int:
    dialect = content.get("$schema") if isinstance(content, dict) else None
    if not isinstance(dialect, str):
        return DEFAULT_DRAFT
    return DIALECTS.get(dialect.rstrip("#").split("://")[-1], DEFAULT_DRAFT)


def _resources(content: Any, references: Sequence[NamedSchema]) -> list[tuple[str, Any]]:
    """The referenced documents by their addresses: a name as it stands, and as it is seen from the schema's `$id`."""
    bases = [BASE_URI]
    if isinstance(content, dict):
        bases += [base for base in (content.get("$id"), content.get("id")) if isinstance(base, str)]
    found: dict[str, Any] = {}
    for reference in references:
        referenced = without_dialect(_content(reference.text, f"JSON schema '{reference.name}'"))
        for base in bases:
            try:
                found.setdefault(urljoin(base, reference.name), referenced)
            except ValueError:  # an address that none can be, such as http://[
                raise InvalidSchema(f"'{reference.name}', the name of a reference, is no address.") from None
    return list(found.items())


def _validator(document: Document) -> jsonschema_rs.Validator:
    try:
        return DRAFTS[document.draft][1](
            without_dialect(document.content),
            validate_formats=False,
            pattern_options=PATTERNS,
            registry=document.registry(),
            base_uri=BASE_URI,
            offline=True,
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise InvalidSchema(_explained(error, document.draft)) from None


def _explained(error: Exception, draft: int) -> str:
    missing = _MISSING.search(str(error))
    if missing:
        return (
            f"The JSON schema refers to '{missing[1]}', which is not among its references, and nothing is fetched from "
            "elsewhere. Register that schema, and add a reference with this name."
        )
    path = "".join(f"/{step}" for step in getattr(error, "instance_path", ()))
    return f"#{path}: this is no JSON schema of {DRAFTS[draft][0]}: {first_line(error)}."
