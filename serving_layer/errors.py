"""What can go wrong with a question. Each kind becomes one problem document (infra/rest/problems.py)."""

from __future__ import annotations

from typing import Any


class ServingError(Exception):
    """A question that is not answered. `more` are further members of the problem document."""

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
    """None of the formats that the asker accepts can be given: `allowed` are those that can."""

    status = 406
    kind = "not-acceptable"


class UnknownView(ServingError):
    """There is no such view, or the key may not see it."""

    status = 404
    kind = "unknown-view"


class UnknownSource(ServingError):
    """There is no such source, or the key may see no view of it."""

    status = 404
    kind = "unknown-source"


class TooLarge(ServingError):
    """The question passes a limit: `limit` names the setting, and the detail how to narrow it."""

    status = 422
    kind = "too-large"


class TooLong(ServingError):
    """The question took longer than `query_timeout_s`."""

    status = 503
    kind = "too-long"


class NotYet(ServingError):
    """The views have not come as far as was asked (`min_cut`): how far they are stands in `applied`."""

    status = 412
    kind = "not-yet"


class Stale(ServingError):
    """The views are older than was asked for (`max_staleness`)."""

    status = 503
    kind = "stale"


class NoBatchView(ServingError):
    """The batch side cannot be read; half a sum is never answered."""

    status = 503
    kind = "no-batch-side"


class NotComputedYet(ServingError):
    """The view is declared, but no run has it yet: it joins at the next cut."""

    status = 503
    kind = "not-computed-yet"
