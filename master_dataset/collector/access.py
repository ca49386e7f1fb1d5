"""Who may use the collector: every request but the health checks proves a key with the right scope."""

from __future__ import annotations

from starlette.requests import Request

from infra.access_keys import AccessKeyError, AccessKeys
from infra.problems import Problem
from infra.settings import Settings

CHALLENGE = {"WWW-Authenticate": 'Basic realm="tidemark", charset="UTF-8", Bearer realm="tidemark"'}


class Access:
    """Checks the keys of a home."""

    def __init__(self, settings: Settings) -> None:
        self._keys = AccessKeys(settings.home)
        self._required = settings.access_required

    def check(self, request: Request, *scopes: str) -> None:
        """Raise the problem 401 or 403 unless the request's key has one of the scopes."""
        if not self._required:
            return
        given = request.headers.get("authorization", "")
        try:
            key = self._keys.find(given)
        except AccessKeyError as error:
            raise Problem(503, "keys-unreadable", f"No key can be checked: {error}", retry_after_s=30) from None
        if key is None:
            found = "the access key is not a valid one" if given else "it has no access key"
            raise Problem(
                401,
                "not-authorized",
                f"This request needs an access key with the scope {' or '.join(scopes)}; {found}. Send "
                "`Authorization: Basic` with name and secret (curl -u name:secret) or `Authorization: Bearer` with "
                "the secret. `tidemark up` showed the first key once; `tidemark keys add` makes more.",
                headers=CHALLENGE,
            )
        if key.scopes.isdisjoint(scopes):
            raise Problem(
                403,
                "missing-scope",
                f"The key {key.name!r} has the scopes {', '.join(sorted(key.scopes))}; this needs "
                f"{' or '.join(scopes)}.",
                scopes=sorted(scopes),
            )
