"""Errors of queries. Each class becomes one kind of problem document (infra/rest/problems.py)."""

from __future__ import annotations

from typing import Any


class ServingError(Exception):
    """A query without a result. `more` are further members of the problem document."""

    status = 500
    kind = "not-answered"

    def __init__(self, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.detail, self.more = detail, more


class BadParameter(ServingError):
    """A parameter is wrong: `parameter` names it, `given` is what it was, `allowed` what it may be."""

    status = 422
    kind = "bad-parameter"

    def __init__(self, parameter: str, given: Any, detail: str, allowed: Any = None) -> None:
        super().__init__(detail, parameter=parameter, given=given, allowed=allowed)


class NotAcceptable(ServingError):
    """The client accepts none of the formats: `allowed` are those that there are."""

    status = 406
    kind = "not-acceptable"


class UnknownView(ServingError):
    """There is no such view."""

    status = 404
    kind = "unknown-view"


class UnknownSource(ServingError):
    """There is no such source, or it has no views."""

    status = 404
    kind = "unknown-source"


class RegistryUnreadable(ServingError):
    """The schema registry cannot be read, or is not that of this home."""

    kind = "registry-unreadable"

    def __init__(self, detail: str, status: int) -> None:
        super().__init__(detail)
        self.status = status


class UnknownSubject(ServingError):
    """The schema registry has no such subject, or no such version of it."""

    status = 404
    kind = "unknown-subject"


class TooLarge(ServingError):
    """The query exceeds a limit: `limit` names it, and the detail says how to narrow the query."""

    status = 422
    kind = "too-large"


class TooLong(ServingError):
    """The query took longer than `serving_timeout_s`."""

    status = 503
    kind = "too-long"


class NotYet(ServingError):
    """The views have not reached `min_cut`: `applied` says how far they are."""

    status = 412
    kind = "not-yet"


class Stale(ServingError):
    """The views are older than `max_staleness`."""

    status = 503
    kind = "stale"


class NoBatchView(ServingError):
    """The batch view cannot be read. The speed view alone is never the answer."""

    status = 503
    kind = "no-batch-side"


class NotComputedYet(ServingError):
    """The view is declared, but no run has it yet: it joins at the next run."""

    status = 503
    kind = "not-computed-yet"
