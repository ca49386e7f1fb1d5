"""Access control of the REST servers: requests need a key with the right scope, except for `/health` and the like.

A key comes in the Authorization header (`access_keys.py`) or by the cookie of a browser's session (`sessions.py`).
Without a valid key the response is 401, without the scope 403, and 403 too where the key is limited to other sources,
topics or views (`key_limits.py`). `access_required=false` turns the check off.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import HTTPConnection

from infra.rest.access_keys import AccessKey, AccessKeyError, AccessKeys, KeyExpired
from infra.rest.problems import Problem
from infra.rest.sessions import SAFE_METHODS, Session, Sessions, is_from_another_page, is_silent_browser
from infra.settings import Settings

CHALLENGE = {"WWW-Authenticate": 'Basic realm="tidemark", charset="UTF-8", Bearer realm="tidemark"'}
SECURITY_SCHEMES = {
    "basic": {"type": "http", "scheme": "basic", "description": "A key's name and secret."},
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key's secret."},
}
"""The same for OpenAPI."""
PAGE_HEADER = "x-requested-with"
"""What scripts of our pages send: at `Basic` a browser would ask for name and secret by a window of its own."""
PAGE_CHALLENGE = {"WWW-Authenticate": 'Session realm="tidemark"'}
SCOPES_OF_CHANGES = frozenset({"produce", "consume"})
"""A request that needs no other scope changes something even by GET: it stores a message, or moves a consumer group."""


class Access:
    """Checks the keys of a home, and where it has sessions, the cookies that stand for keys."""

    def __init__(self, settings: Settings, sessions: Sessions | None = None) -> None:
        self._keys = AccessKeys(settings.home)
        self.is_required = settings.access_required
        self.sessions = sessions

    def check(self, connection: HTTPConnection, *scopes: str, authorization: str | None = None) -> AccessKey | None:
        """The key of a request or WebSocket, None where none is needed; the problem 401 or 403 unless it has a scope.

        A key comes in the Authorization header, or by the cookie of a session; never in an address, which is written
        into logs and histories. Where a protocol has another place for it, `authorization` is what the header would be.
        """
        if not self.is_required:
            if connection.scope["type"] == "websocket":
                _refuse_other_pages(connection, scopes)
            return None
        header = connection.headers.get("authorization", "")
        given = header if authorization is None else authorization
        found = "the access key is not a valid one" if given else "it has no access key"
        try:
            key = self._keys.find(given) if given else self._signed_in(connection)
        except KeyExpired as expired:
            key, found = None, str(expired)
        except AccessKeyError as error:
            raise Problem(503, "keys-unreadable", f"No key can be checked: {error}", retry_after_s=30) from None
        if key is None:
            raise Problem(
                401,
                "not-authorized",
                f"This request needs an access key with the scope {' or '.join(scopes)}; {found}. Send "
                "`Authorization: Basic` with name and secret (curl -u name:secret) or `Authorization: Bearer` with "
                "the secret. `tidemark up` showed the first key once; `tidemark keys add` makes more.",
                headers=PAGE_CHALLENGE if PAGE_HEADER in connection.headers else CHALLENGE,
            )
        if key.scopes.isdisjoint(scopes):
            raise Problem(
                403,
                "missing-scope",
                f"The key {key.name!r} has the scopes {', '.join(sorted(key.scopes))}; this needs "
                f"{' or '.join(scopes)}.",
                scopes=sorted(scopes),
            )
        if header.strip()[:6].lower() != "bearer":  # no browser sends that by itself
            _refuse_other_pages(connection, scopes)
        return key

    def find(self, authorization: str) -> AccessKey | None:
        """The key that an Authorization header proves, else None; KeyExpired if it did so once."""
        return self._keys.find(authorization)

    def session(self, connection: HTTPConnection) -> tuple[Session, AccessKey] | None:
        """The session of a request, if it has one that is valid."""
        return None if self.sessions is None else self.sessions.find(connection, self._keys)

    def _signed_in(self, connection: HTTPConnection) -> AccessKey | None:
        found = self.session(connection)
        return None if found is None else found[1]


def not_allowed(key: AccessKey, asked: str, allowed: str) -> Problem:
    """The problem 403 of a key that is limited to others than what was asked for; it names what the key may use."""
    return Problem(
        403,
        "not-allowed",
        f"The key {key.name!r} is limited to {allowed}; {asked} is not among them. `tidemark keys add` makes a key "
        "with other limits.",
        key=key.name,
    )


def _refuse_other_pages(connection: HTTPConnection, scopes: Iterable[str]) -> None:
    """Raise the problem 403 for a request that a page of another server made and that does more than read.

    A browser adds name and secret, once it has asked for them, to whatever any page requests of this server. It lets
    a foreign page read no answer, but what a request does is done by then; and it keeps no page from a WebSocket.
    """
    if connection.scope["type"] == "http" and connection.scope["method"] in SAFE_METHODS:
        if not SCOPES_OF_CHANGES.issuperset(scopes):
            return
        is_foreign = is_from_another_page(connection) or is_silent_browser(connection)
    else:
        is_foreign = is_from_another_page(connection)
    if is_foreign:
        raise Problem(
            403,
            "other-origin",
            "Only pages of this server may open a WebSocket or change something with what the browser knows. Programs "
            "send no Origin, or the secret as `Authorization: Bearer`.",
        )
