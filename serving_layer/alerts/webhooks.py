"""Webhooks: a signed POST to a configured URL, never to an address of a private network unless that is allowed.

The host name is resolved once for each delivery, all its addresses are checked, and the connection goes to one that
was checked: a name that resolves differently the second time gains nothing. Redirects are not followed.
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
MIN_SECRET = 16
EXAMPLE = '{"operations": {"url": "https://example.org/hook", "secret": "at least 16 characters"}}'
MAX_REPLY = 200
NOT_PUBLIC = tuple(ipaddress.ip_network(each) for each in ("192.88.99.0/24", "fec0::/10", "3fff::/20"))
"""In addition to those that Python knows: 6to4 relays, the former site-local range, and documentation."""


class WebhookError(InfraError):
    """The webhooks file is not valid."""

    exit_code = 2


class NotDelivered(Exception):
    """A delivery failed, for the reason in the text. It is retried later."""


@dataclass(frozen=True)
class Webhook:
    """A URL, and the secret that signs requests to it."""

    name: str
    url: str
    secret: str

    def __repr__(self) -> str:
        return f"Webhook({self.name!r})"  # URL and secret stay out of logs


def read_webhooks(path: Path | None) -> dict[str, Webhook]:
    """The webhooks in the file of the setting `alerts_webhooks_file`, by name."""
    if path is None:
        return {}
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WebhookError(f"alerts_webhooks_file is {str(path)!r}, which cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise WebhookError(f"{path} is not JSON ({error}). Write it like {EXAMPLE}.") from None
    if not isinstance(given, dict):
        raise WebhookError(f"{path} must be an object like {EXAMPLE}.")
    return {name: _webhook(path, name, each) for name, each in given.items()}


def _webhook(path: Path, name: str, given: Any) -> Webhook:
    if not re.fullmatch(NAME, name):
        raise WebhookError(f"{path}: {name!r} is not a valid name. Use lower-case letters, digits and underscores.")
    if not isinstance(given, dict) or set(given) != {"url", "secret"} or not all(map(_is_text, given.values())):
        raise WebhookError(f"{path}: webhook {name!r} must have url and secret, both strings, like {EXAMPLE}.")
    if re.search(r"[^!-~]", given["url"]):  # urlsplit silently drops some of them
        raise WebhookError(
            f"{path}: the url of webhook {name!r} has a space, a control character or a character that is not "
            "ASCII. Percent-encode it: a space is %20."
        )
    try:
        parts, port = urlsplit(given["url"]), urlsplit(given["url"]).port
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.fragment or port == 0:
        raise WebhookError(
            f"{path}: the url of webhook {name!r} must be like https://example.org/hook, without a user name."
        )
    if len(given["secret"]) < MIN_SECRET:
        raise WebhookError(f"{path}: the secret of webhook {name!r} must have at least {MIN_SECRET} characters.")
    return Webhook(name, given["url"], given["secret"])


def check_named(webhooks: Iterable[str], alerts: Iterable[Alert]) -> None:
    """Raise WebhookError if an alert names a webhook that is not configured: nobody would be notified."""
    known = set(webhooks)
    for alert in alerts:
        for name in alert.webhooks or ():
            if name not in known:
                configured = ", ".join(sorted(known)) or "none (alerts_webhooks_file is not set, or empty)"
                raise WebhookError(
                    f"Alert {alert.name!r} names webhook {name!r}, which is not in the webhooks file. There are: "
                    f"{configured}. Add it to the file, or remove the name from webhooks=."
                )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def signature(secret: str, at: int, body: bytes) -> str:
    """`t=1772323200,v1=<hex>`: the HMAC-SHA-256 of the time, a dot and the body."""
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def is_public(address: str) -> bool:
    """Whether an IP address is globally reachable: not loopback, private or link-local."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo and ip.teredo[1])
        if inner:
            return is_public(str(inner))
        if ip in ipaddress.ip_network("64:ff9b::/96"):  # IPv4 behind a translator
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
    if any(ip.version == each.version and ip in each for each in NOT_PUBLIC):
        return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


def resolve(host: str, port: int, *, allow_private: bool) -> list[str]:
    """The addresses of a host. Raises NotDelivered if one of them is not allowed."""
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NotDelivered(f"{host} has no address: {error}") from None
    addresses = list(dict.fromkeys(str(each[4][0]) for each in resolved))
    private = [] if allow_private else [address for address in addresses if not is_public(address)]
    if private:
        raise NotDelivered(
            f"{host} is {', '.join(private)}, an address of a private network. Set alerts_webhooks_private to allow it."
        )
    return addresses


def deliver(hook: Webhook, delivery: str, body: bytes, *, timeout_s: float, allow_private: bool) -> None:
    """Send one POST. Raises NotDelivered unless the reply is 2xx in time; resolving the name is not counted."""
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
    watchdog = threading.Timer(timeout_s, connection.cut)  # a socket's timeout restarts with each byte
    watchdog.daemon = True
    watchdog.start()
    try:
        path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        connection.request("POST", path, body, headers)
        with connection.getresponse() as response:
            reply = response.read(MAX_REPLY).decode(errors="replace")
        for secret in (parts.path, parts.query):  # some servers repeat them
            reply = reply.replace(secret, "…") if len(secret) > 1 else reply
    except (OSError, http.client.HTTPException, ValueError) as error:
        # Messages of http.client may contain the path, which may be a secret; those of the system do not.
        message = str(error) if isinstance(error, OSError) else ""
        reason = f"no answer within {timeout_s:g} s" if connection.is_cut else (message or type(error).__name__)
        raise NotDelivered(f"{host}: {reason}") from None
    finally:
        watchdog.cancel()
        connection.close()
    if connection.is_cut:  # half a reply looks like one that ended there
        raise NotDelivered(f"{host}: no answer within {timeout_s:g} s")
    if not 200 <= response.status < 300:
        hint = " (redirects are not followed)" if 300 <= response.status < 400 else ""
        raise NotDelivered(f"{host} answered {response.status}{hint}: {reply}")


class _Pinned(http.client.HTTPConnection):
    """A connection to one address, whatever the name resolves to by now. The certificate must be for the name."""

    def __init__(self, host: str, port: int, address: str, timeout_s: float, *, is_secure: bool) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._address, self._is_secure, self.is_cut = address, is_secure, False

    def connect(self) -> None:
        """Connect to the address that was checked."""
        plain = socket.create_connection((self._address, self.port), self.timeout)
        self.sock = plain
        if self._is_secure:
            self.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=self.host)

    def cut(self) -> None:
        """Close the connection, whatever it is waiting for."""
        self.is_cut = True
        sock = self.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
