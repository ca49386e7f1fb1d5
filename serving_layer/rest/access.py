"""Access to views: keys with the scope `query`, and the views that each may see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial

from starlette.requests import HTTPConnection

from infra.rest.access import Access
from infra.rest.access_keys import AccessKey
from infra.rest.sessions import Sessions
from infra.settings import Settings
from serving_layer.errors import UnknownView
from views.view import View

SCOPES = ("query", "admin")
MAX_SHOWN = 100


class ViewAccess:
    """The views that a request may query. A view that its key may not see does not exist for it.

    `others` are views of a published run that were not declared when this process started.
    """

    def __init__(
        self, settings: Settings, declared: Mapping[str, View], others: Callable[[], Mapping[str, View]]
    ) -> None:
        lasts_s = settings.serving_session_hours * 3600
        self.keys = Access(settings, Sessions(settings.home, lasts_s, folder=settings.serving_sessions_dir))
        self._declared, self._others = dict(declared), others

    def views(self, connection: HTTPConnection) -> dict[str, View]:
        """The views that the key may see, by name; the problem 401 or 403 without a valid key."""
        return self._seen_by(self.keys.check(connection, *SCOPES))

    def view(self, connection: HTTPConnection, name: str) -> View:
        """One of them, or UnknownView."""
        key = self.keys.check(connection, *SCOPES)
        found = self._declared.get(name) or self._others().get(name)
        if found is None or not _may_see(key, name):
            raise _unknown(name, self._seen_by(key))
        return found

    def seeing(self, connection: HTTPConnection) -> Callable[[str], bool]:
        """A test whether the key may see the view of a name; the problem 401 or 403 without a valid key."""
        return partial(_may_see, self.keys.check(connection, *SCOPES))

    def _seen_by(self, key: AccessKey | None) -> dict[str, View]:
        known = {**self._others(), **self._declared}
        return {name: known[name] for name in sorted(known) if _may_see(key, name)}


def _may_see(key: AccessKey | None, view: str) -> bool:
    return key is None or key.views is None or view in key.views


def _unknown(name: str, known: dict[str, View]) -> UnknownView:
    shown = name if len(name) <= MAX_SHOWN else f"{name[: MAX_SHOWN - 1]}…"
    close = get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    there = ", ".join(known) or "none that this key may see"
    return UnknownView(f"There is no view {shown!r}.{hint} There are: {there}.", view=shown)
