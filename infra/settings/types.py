"""The types of settings: how a text becomes a value, and what is refused."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from infra.cron import parse_cron, parse_zone

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
"""How an address begins. Of `s3a://bucket` a Path keeps one slash."""


def absolute(path: Path) -> Path:
    """The path from the root, with ~ replaced; links stay as they are. An address is refused: it would become a local
    folder of that name.
    """
    if found := SCHEME.match(str(path)):
        raise ValueError(
            f"a path of this machine: addresses like {found[1]}://... are not supported. Use a local folder or file, "
            "or one that is mounted here"
        )
    try:
        return Path(os.path.abspath(path.expanduser()))  # noqa: PTH100  resolve() would follow the user's links
    except RuntimeError:
        raise ValueError("a path whose ~ names a user of this machine") from None


def redis_address(url: str) -> str:
    """Refuse an address that is not Redis's, or holds a password."""
    if url and urlsplit(url).scheme not in ("redis", "rediss"):
        raise ValueError("an address like redis://host:6379/0 or rediss://host:6379/0")
    if url and (urlsplit(url).password or "password=" in url or "@" in url.partition(urlsplit(url).netloc)[2]):
        raise ValueError("an address without a password: put that into TIDEMARK_REDIS_PASSWORD or redis_password_file")
    return url


def http_address(url: str) -> str:
    """Refuse an address that is not a web server's, or holds a password."""
    if not url:
        return url
    try:
        parts, port = urlsplit(url), urlsplit(url).port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or port == 0:
        raise ValueError("an address like http://host:8081 or https://host/path")
    if parts.username or parts.password:
        raise ValueError("an address without user and password: they have settings of their own")
    return url


def is_loopback(host: str) -> bool:
    """Whether a server on this address is out of reach for other machines. A name is not looked up."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def brokers(text: str) -> str:
    """Refuse what is not a list of host:port."""
    for broker in text.split(",") if text else ():
        host, _, port = broker.strip().rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port) < 65536):
            raise ValueError("brokers with their ports, like one.example:9092,two.example:9092")
    return text


def _empty_text(value: object) -> object:
    """An empty variable is no value (None) for a path or a secret, and an empty text for a text."""
    return "" if value is None else value


def _memory(text: str) -> str:
    if not (text[:-1].isdigit() and text[-1:].lower() in "mgt" and int(text[:-1]) > 0):
        raise ValueError("a size for the JVM: a whole number and m, g or t, like 1g or 1500m")
    return text


def cron_text(text: str) -> str:
    """Refuse what is no schedule."""
    try:
        if text:
            parse_cron(text)
    except ValueError as error:
        raise ValueError(
            f"a cron text (minute hour day month weekday) like '15 3 * * *', or empty for no schedule: {error}"
        ) from None
    return text


def time_zone(name: str) -> str:
    """Refuse what is no time zone."""
    try:
        parse_zone(name)
    except ValueError as error:
        raise ValueError(f"the name of a time zone like UTC or Europe/Berlin: {error}") from None
    return name


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


Location = Annotated[Path, AfterValidator(absolute)]
Port = Annotated[int, Field(ge=0, le=65535)]
Text = Annotated[str, BeforeValidator(_empty_text)]
Memory = Annotated[str, AfterValidator(_memory)]
LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper)]
