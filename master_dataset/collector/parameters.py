"""Parameters of requests: query strings read strictly, each wrong value named with what would be right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast
from urllib.parse import unquote_to_bytes

from starlette.requests import Request

from infra.rest.responses import query_pairs, wrong_parameter
from master_dataset.collector.producer import Acks

ACKS: dict[str, Acks] = {"0": "0", "1": "1", "all": "all", "-1": "all"}
YES = frozenset({"true", "1", "yes", "on"})
NO = frozenset({"false", "0", "no", "off", ""})


def query(request: Request) -> dict[str, str]:
    """The query string."""
    return dict(query_pairs(request))


def acks_of(parameters: Mapping[str, str]) -> Acks:
    """Which acknowledgement to wait for."""
    given = parameters.get("acks", "all").lower()
    if given not in ACKS:
        raise wrong_parameter("acks", "0, 1 or all", given)
    return ACKS[given]


def flag(name: str, text: str) -> bool:
    """A yes or no."""
    if text.lower() in YES:
        return True
    if text.lower() in NO:
        return False
    raise wrong_parameter(name, "true or false", text)


def whole_number(name: str, value: object, lowest: int, highest: int) -> int:
    """An integer within bounds, from a query string, a header or JSON."""
    number: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit() and len(value) < 20:
        number = int(value)
    if number is None or not lowest <= number <= highest:
        raise wrong_parameter(name, f"a whole number, {lowest} to {highest}", str(value))
    return number


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """One of a few words."""
    if value.lower() not in allowed:
        raise wrong_parameter(name, " or ".join(allowed), value)
    return value.lower()


def path_parts(request: Request, prefix: bytes, count: int, at_least: int | None = None) -> list[str]:
    """What follows `prefix` in the path, as `count` parts (or `at_least` so many); slashes of the last are its own.

    Read from the raw path, because the decoded one has replaced what is not UTF-8. A route is found by the decoded
    one: there an encoded slash ends a part, here it belongs to it.
    """
    raw = cast(bytes, request.scope["raw_path"]).split(b"?", 1)[0]
    parts = raw.removeprefix(prefix).split(b"/", count - 1)
    if len(parts) < (at_least or count):
        raise wrong_parameter("path", f"{at_least or count} parts after {prefix.decode()}", raw.decode("latin-1"))
    try:
        return [unquote_to_bytes(part).decode() for part in parts]
    except UnicodeDecodeError:
        raise wrong_parameter("path", "percent-encoded UTF-8", raw.decode("latin-1")) from None
