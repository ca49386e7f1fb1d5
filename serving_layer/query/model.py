"""A question: one query over one view, checked. asking.py makes it, engine.py answers it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from master_dataset.cut import Cut
from views.typed_expression import Typed
from views.view import View


class Period(NamedTuple):
    """A half-open stretch of time, in seconds since 1970."""

    start: int
    end: int


@dataclass(frozen=True)
class Filter:
    """Which values of one key are asked about: one of `values`, none of them, or texts that begin with one of them.

    A value is as the view's keys have it (text, int, bool, date, or None).
    """

    key: str
    kind: Literal["is", "not", "prefix"]
    values: tuple[Any, ...]


class Order(NamedTuple):
    """What rows are sorted by: `bucket`, a key of `by`, or an answer."""

    name: str
    descending: bool


class Freshness(NamedTuple):
    """What the asker insists on before the question is answered, and how long they wait for it."""

    max_staleness_s: float | None = None
    min_cut: Cut | None = None
    wait_s: float = 0.0


@dataclass(frozen=True)
class Query:
    """A query over one view. All of it is checked: a question can be answered, or is too large.

    `periods` are what rows are about, in order, clipped to the range; `windows` are what the answers of each period are
    taken over: the period itself, or a longer stretch that ends with it where a rolling window is asked for.
    """

    view: View
    range: Period
    grain: str
    tz: str
    periods: tuple[Period, ...]
    windows: tuple[Period, ...]
    filters: tuple[Filter, ...] = ()
    by: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    quantiles: tuple[float, ...] = ()
    having: Typed | None = None
    order: tuple[Order, ...] = ()
    limit: int = 1000
    cursor: str | None = None
    previous: tuple[Period, ...] | None = None
    """The windows of the periods before, one for each of `periods`, where they are to be compared."""
    fill: bool = False
    explain: bool = False
    freshness: Freshness = field(default_factory=Freshness)

    def without_page(self) -> str:
        """The same text for the same question, whatever its page: what a cursor belongs to."""
        parts = (
            self.view.hash, self.range, self.grain, self.tz, hash(self.windows), self.filters, self.by, self.answers,
            self.quantiles, self.having.sql if self.having else None, self.order, self.previous is not None, self.fill,
        )  # fmt: skip
        return repr(parts)
