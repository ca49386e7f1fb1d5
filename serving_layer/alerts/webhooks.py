"""Webhooks: a signed POST to an address that a person named; never to an address that this machine alone can reach.

The name is resolved once for each delivery, every address it has is checked, and the connection goes to the one that
was checked: a name that answers differently the second time gains nothing. Redirects are not followed.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from infra.errors import InfraError
from infra.version import VERSION
from views.alert import Alert
from views.source import NAME

SIGNATURE, DELIVERY = "Tidemark-Signature", "Tidemark-Delivery"
LEAST_SECRET = 16
EXAMPLE = '{"operations": {"url": "https://example.org/hook", "secret": "at least 16 characters"}}'
MOST_SAID = 200
NOT_PUBLIC = tuple(ipaddress.ip_network(each) for each in ("192.88.99.0/24", "fec0::/10", "3fff::/20"))
"""Besides those that Python knows: relays of 6to4, what was site-local, and documentation."""


class WebhookError(InfraError):
    """The file of webhooks cannot be used."""

    exit_code = 2


class NotDelivered(Exception):
    """A delivery failed; the text says how. It is tried again later."""


@dataclass(frozen=True)
class Webhook:
    """Where to tell, and the secret that signs what is told."""

    name: str
    url: str
    secret: str

    def __repr__(self) -> str:
        return f"Webhook({self.name!r})"  # address and secret stay out of logs


def read_webhooks(path: Path | None) -> dict[str, Webhook]:
    """The webhooks of the file that a setting names."""
    if path is None:
        return {}
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WebhookError(f"alerts_webhooks_file is {str(path)!r}, which cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise WebhookError(f"{path} is not JSON ({error}); it should be like {EXAMPLE}.") from None
    if not isinstance(given, dict):
        raise WebhookError(f"{path} should be an object like {EXAMPLE}.")
    return {name: _webhook(path, name, each) for name, each in given.items()}


def _webhook(path: Path, name: str, given: Any) -> Webhook:
    if not re.fullmatch(NAME, name):
        raise WebhookError(f"{path}: {name!r} is no name: lower-case letters, digits and underscores.")
    if not isinstance(given, dict) or set(given) != {"url", "secret"} or not all(map(_is_text, given.values())):
        raise WebhookError(f"{path}: webhook {name!r} should have url and secret, both texts, like {EXAMPLE}.")
    if re.search(r"[^!-~]", given["url"]):  # urlsplit lets some of it go by silently
        raise WebhookError(
            f"{path}: the url of webhook {name!r} has a space, a control character or one that is not ASCII. Write it "
            "as %20 and so on."
        )
    try:
        parts, port = urlsplit(given["url"]), urlsplit(given["url"]).port
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.fragment or port == 0:
        raise WebhookError(
            f"{path}: the url of webhook {name!r} should be like https://example.org/hook, without a user name."
        )
    if len(given["secret"]) < LEAST_SECRET:
        raise WebhookError(f"{path}: the secret of webhook {name!r} should have at least {LEAST_SECRET} characters.")
    return Webhook(name, given["url"], given["secret"])


def check_named(webhooks: Iterable[str], alerts: Iterable[Alert]) -> None:
    """WebhookError where an alert names a webhook that is not there: it would be told to nobody."""
    known = set(webhooks)
    for alert in alerts:
        for name in alert.webhooks or ():
            if name not in known:
                there = ", ".join(sorted(known)) or "none (alerts_webhooks_file is not set, or empty)"
                raise WebhookError(
                    f"Alert {alert.name!r} is to tell webhook {name!r}, which is not in the file of webhooks. There "
                    f"are: {there}. Add it there, or take the name out of webhooks=."
                )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def signature(secret: str, at: int, body: bytes) -> str:
    """`t=1772323200,v1=<hex>`: the HMAC with SHA-256 of the time, a dot and the body."""
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def is_public(address: str) -> bool:
    """Whether an IP address is one that anybody can reach: no loopback, no private or link-local network."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo and found.teredo[1])
        if inner:
            return is_public(str(inner))
        if found in ipaddress.ip_network("64:ff9b::/96"):  # IPv4 behind a translator
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
    if any(found.version == each.version and found in each for each in NOT_PUBLIC):
        return False
    return found.is_global and not found.is_multicast and not found.is_reserved


def resolve(host: str, port: int, *, allow_private: bool) -> list[str]:
    """The addresses of a host, all of them checked. NotDelivered where one may not be used."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NotDelivered(f"{host} has no address: {error}") from None
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    inside = [] if allow_private else [address for address in addresses if not is_public(address)]
    if inside:
        raise NotDelivered(
            f"{host} is {', '.join(inside)}, an address of a private network. Set alerts_webhooks_private to allow it."
        )
    return addresses


def deliver(hook: Webhook, delivery: str, body: bytes, *, timeout_s: float, allow_private: bool) -> None:
    """One POST. NotDelivered unless the answer is 2xx within the time, name resolution excepted."""
    parts = urlsplit(hook.url)
    host, is_secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if is_secure else 80)
    address = resolve(host, port, allow_private=allow_private)[0]
    at = int(time.time())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"tidemark/{VERSION}",
        SIGNATURE: signature(hook.secret, at, body),
        DELIVERY: delivery,
        "Connection": "close",
    }
    connection = _Pinned(host, port, address, timeout_s, is_secure=is_secure)
    watchdog = threading.Timer(timeout_s, connection.cut)  # a socket's timeout starts anew with each byte
    watchdog.daemon = True
    watchdog.start()
    try:
        path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        connection.request("POST", path, body, headers)
        with connection.getresponse() as answer:
            said = answer.read(MOST_SAID).decode(errors="replace")
        for secret in (parts.path, parts.query):  # some servers say them back
            said = said.replace(secret, "…") if len(secret) > 1 else said
    except (OSError, http.client.HTTPException, ValueError) as error:
        # Texts of http.client may have the path in them, which may be a secret; those of the system have not.
        said_why = str(error) if isinstance(error, OSError) else ""
        why = f"no answer within {timeout_s:g} s" if connection.is_cut else (said_why or type(error).__name__)
        raise NotDelivered(f"{host}: {why}") from None
    finally:
        watchdog.cancel()
        connection.close()
    if connection.is_cut:  # half an answer looks like one that ended there
        raise NotDelivered(f"{host}: no answer within {timeout_s:g} s")
    if not 200 <= answer.status < 300:
        hint = " (redirects are not followed)" if 300 <= answer.status < 400 else ""
        raise NotDelivered(f"{host} answered {answer.status}{hint}: {said}")


class _Pinned(http.client.HTTPConnection):
    """A connection to one address, whatever the name resolves to by now; the certificate is the name's."""

    def __init__(self, host: str, port: int, address: str, timeout_s: float, *, is_secure: bool) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._address, self._is_secure, self.is_cut = address, is_secure, False

    def connect(self) -> None:
        """To the address that was checked."""
        plain = socket.create_connection((self._address, self.port), self.timeout)
        self.sock = plain
        if self._is_secure:
            self.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=self.host)

    def cut(self) -> None:
        """End it, whatever it waits for."""
        self.is_cut = True
        found = self.sock
        if found is not None:
            with suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)
