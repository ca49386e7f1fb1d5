"""Requests to the registry: names from the path, loosely written parameters, and bodies with a schema."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar, cast
from urllib.parse import unquote_to_bytes

import orjson
from starlette.requests import Request

from infra.rest.responses import query_pairs
from master_dataset.collector.bodies import read_body
from master_dataset.collector.context import Collector
from master_dataset.collector.schema_registry.route import PREFIX
from master_dataset.registry.errors import RegistryError, invalid_schema, invalid_version, shown
from master_dataset.registry.records import MAX_INT32, kept_json
from master_dataset.registry.references import LATEST as LATEST_NUMBER
from master_dataset.registry.registry import Submitted
from master_dataset.registry.schemas import AVRO, JSON, PROTOBUF, Reference, Schema
from views.schemas.model import MAX_REFERENCES

TYPES = (JSON, PROTOBUF, AVRO)
MAX_SUBJECT = 500
MAX_DIGITS = 10
YES = frozenset({"true", "1", "yes", "on"})
CONTEXT = re.compile(r":[.*]")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
LATEST = "latest"

T = TypeVar("T")


def names(request: Request) -> list[str]:
    """What follows the prefix in the path, decoded part by part."""
    raw = cast(bytes, request.scope["raw_path"]).split(b"?", 1)[0].removeprefix(PREFIX.encode())
    try:
        return [unquote_to_bytes(part).decode() for part in raw.strip(b"/").split(b"/")]
    except UnicodeDecodeError:
        raise RegistryError(400, "The path is not percent-encoded UTF-8.") from None


def subject_of(request: Request, index: int) -> str:
    """The subject in the path."""
    return check_subject_name(names(request)[index])


def check_subject_name(subject: str) -> str:
    """The subject, or 42208 for what is none here."""
    if not subject or len(subject) > MAX_SUBJECT or CONTROL.search(subject):
        raise RegistryError(
            42208,
            f"The specified subject {shown(subject)} is not a valid: a subject has 1 to {MAX_SUBJECT} characters, none "
            "of them a control character.",
        )
    if CONTEXT.match(subject):
        raise RegistryError(
            42208, f"The subject {shown(subject)} is in a context; this registry has the default context only."
        )
    return subject


def version_of(text: str) -> int | None:
    """A version in the path; None for the latest. 42202 for what is none."""
    if text == LATEST or text == "-1":
        return None
    number = _whole(text)
    if number is None or not 0 < number <= MAX_INT32:
        raise invalid_version(text)
    return number


def id_of(text: str) -> int:
    """A schema's id in the path; what is none is not found."""
    number = _whole(text)
    if number is None or number > MAX_INT32:
        raise RegistryError(404, f"There is no schema with the id {shown(text)}: an id is a whole number.")
    return number


def _whole(text: str) -> int | None:
    """The number that at most 10 digits are."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


class Parameters:
    """A query string. Clients write `True`, `true` and `deletedOnly`, `deleted_only`."""

    def __init__(self, request: Request) -> None:
        self._given = {name.replace("_", "").lower(): value for name, value in query_pairs(request)}

    def flag(self, name: str) -> bool:
        """Whether it is set."""
        return self._given.get(name, "").strip().lower() in YES

    def text(self, name: str) -> str:
        """The text of it, empty if it is not given."""
        return self._given.get(name, "")

    def page(self, found: Sequence[T]) -> list[T]:
        """The part of a list that `offset` and `limit` ask for."""
        offset, limit = self._number("offset", 0), self._number("limit", -1)
        return list(found[max(offset, 0) :][: limit if limit > 0 else None])

    def _number(self, name: str, default: int) -> int:
        text = self._given.get(name, "").strip()
        if not text:
            return default
        if not re.fullmatch(r"-?\d{1,10}", text, re.ASCII):
            raise RegistryError(400, f"{name} is {shown(text)}; it should be a whole number.")
        return int(text)


async def read_object(collector: Collector, request: Request) -> dict[str, Any]:
    """The JSON object in the body."""
    with collector.budget.charge() as charge:
        body = await read_body(request, collector.limits.of_small_body, charge, collector.parsing)
        try:
            found = orjson.loads(body)
        except ValueError as error:
            raise RegistryError(400, f"The body is not JSON: {error}.") from None
    if not isinstance(found, dict):
        raise RegistryError(422, f"The body should be a JSON object; found {shown(found)}.")
    return found


async def read_schema(collector: Collector, request: Request) -> Submitted:
    """The schema in the body, as it was sent."""
    given = await read_object(collector, request)
    text, kind = given.get("schema"), given.get("schemaType") or AVRO
    if not isinstance(text, str) or not text.strip():
        raise invalid_schema("Empty schema. Send the text of a schema as the member 'schema'.")
    if kind not in TYPES:
        raise invalid_schema(f"Invalid schema type {shown(kind)}. There are: {', '.join(TYPES)}.")
    schema = Schema(
        text,
        kind,
        _references(given.get("references")),
        _kept("metadata", given.get("metadata")),
        _kept("ruleSet", given.get("ruleSet")),
    )
    return Submitted(schema, _number("id", given.get("id"), 1), _number("version", given.get("version"), 1))


def _references(given: Any) -> tuple[Reference, ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or len(given) > MAX_REFERENCES:
        raise invalid_schema(f"'references' is a list of at most {MAX_REFERENCES} objects; found {shown(given)}.")
    return tuple(map(_reference, given))


def _reference(given: Any) -> Reference:
    name, subject, version = (
        (given.get("name"), given.get("subject"), given.get("version")) if isinstance(given, dict) else (None,) * 3
    )
    if not (isinstance(name, str) and name and isinstance(subject, str) and subject and type(version) is int):
        raise invalid_schema(f"A reference has a name, a subject and a version; found {shown(given)}.")
    if version != LATEST_NUMBER and not 0 < version <= MAX_INT32:
        raise invalid_version(version)
    return Reference(name, subject, version)


def _number(name: str, given: Any, lowest: int) -> int | None:
    """An id or version that the client gives; 0 and -1 stand for none."""
    if given is None or given in (0, -1):
        return None
    if type(given) is not int or not lowest <= given <= MAX_INT32:
        raise RegistryError(42202, f"{name} is {shown(given)}; it should be a whole number from {lowest} on.")
    return given


def _kept(name: str, given: Any) -> str | None:
    """Metadata or rules, which are kept as they are."""
    if not given:
        return None
    if not isinstance(given, dict):
        raise invalid_schema(f"{name!r} is an object; found {shown(given)}.")
    return kept_json(given)
