"""Access to views: keys with the scope `query`, and the views that each may see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches

from starlette.requests import HTTPConnection

from infra.rest.access import Access, not_allowed
from infra.rest.access_keys import AccessKey
from infra.rest.sessions import Sessions
from infra.settings import Settings
from serving_layer.errors import UnknownSource, UnknownView
from views.view import View
from views.watch import Watch

SCOPES = ("query", "admin")
MAX_SHOWN = 100


class ViewAccess:
    """The views that a request may query. A view that its key may not see is refused as one that does not exist.

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
        """One of them; UnknownView, or the problem 403 where the key is limited to other views."""
        key = self.keys.check(connection, *SCOPES)
        found = self._declared.get(name) or self._others().get(name)
        if found is not None and _may_see(key, found):
            return found
        if key is not None and not key.limits.names_view(name):
            raise not_allowed(key, f"the view {_shown(name)!r}", key.limits.describe_views())
        raise _unknown(name, self._seen_by(key))

    def views_of(self, connection: HTTPConnection, source: str) -> list[View]:
        """The views of a source that the key may see; UnknownSource, or the problem 403, where there is none."""
        key = self.keys.check(connection, *SCOPES)
        found = [view for view in self._seen_by(key).values() if view.source.name == source]
        if not found and key is not None and key.limits.has_limited_views:
            raise not_allowed(key, f"a view of the source {_shown(source)!r}", key.limits.describe_views())
        if not found:
            raise UnknownSource(f"There is no source {_shown(source)!r} with views. /sources lists them.")
        return found

    def seeing(self, connection: HTTPConnection) -> Callable[[str], bool]:
        """A test whether the key may see the view of a name; the problem 401 or 403 without a valid key."""
        key = self.keys.check(connection, *SCOPES)
        if key is None or key.limits.views is not None or not key.limits.has_limited_views:
            return lambda name: key is None or key.limits.names_view(name)
        return self._seen_by(key).__contains__

    def watches(self, connection: HTTPConnection, declared: Mapping[str, Watch]) -> dict[str, Watch]:
        """The watches that the key may see, by name. A key that is limited to some views must name a watch as well."""
        key = self.keys.check(connection, *SCOPES)
        return {name: declared[name] for name in sorted(declared) if _may_watch(key, declared[name])}

    def watch(self, connection: HTTPConnection, declared: Mapping[str, Watch], name: str) -> Watch:
        """One of them; UnknownView, or the problem 403 where the key is limited to others."""
        seen = self.watches(connection, declared)
        if name in seen:
            return seen[name]
        key = self.keys.check(connection, *SCOPES)
        if key is not None and not key.limits.names_view(name):
            raise not_allowed(key, f"the watch {_shown(name)!r}", key.limits.describe_views())
        raise UnknownView(
            f"There is no watch {_shown(name)!r}. There are: {', '.join(seen) or 'none'}.", watch=_shown(name)
        )

    def _seen_by(self, key: AccessKey | None) -> dict[str, View]:
        known = {**self._others(), **self._declared}
        return {name: known[name] for name in sorted(known) if _may_see(key, known[name])}


def _may_see(key: AccessKey | None, view: View) -> bool:
    return key is None or key.limits.allows_view(view.name, view.source.name, view.source.topic)


def _may_watch(key: AccessKey | None, watch: Watch) -> bool:
    return key is None or key.limits.allows_view(watch.name, watch.source.name, watch.source.topic)


def _shown(name: str) -> str:
    return name if len(name) <= MAX_SHOWN else f"{name[: MAX_SHOWN - 1]}…"


def _unknown(name: str, known: dict[str, View]) -> UnknownView:
    shown = _shown(name)
    close = get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    there = ", ".join(known) or "none that this key may see"
    return UnknownView(f"There is no view {shown!r}.{hint} There are: {there}.", view=shown)
