"""A query over one view, parsed and checked. parse.py makes it, plan.py plans it, and nothing changes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from master_dataset.cut import Cut
from serving_layer.readers.selection import Period
from views.typed_expression import TypedExpression
from views.view import View

Position = tuple[Any, ...]
"""Where a row stands in the order of a query: its value for each name of the order (order.py)."""


@dataclass(frozen=True)
class Filter:
    """Which values of one key pass: one of `values`, none of them, or strings that begin with one of them.

    A value is as the view's keys have it (str, int, bool, date, or None), a long text in its short form.
    """

    key: str
    kind: Literal["is", "not", "prefix"]
    values: tuple[Any, ...]
    long_texts: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """Texts whose short form is among the values. A run of an older Tidemark has them as they are."""


class Order(NamedTuple):
    """What rows are sorted by: `bucket`, a key of `by`, or an answer."""

    name: str
    descending: bool


class Freshness(NamedTuple):
    """How fresh the views must be before the query is executed, and how long it waits for that."""

    max_staleness_s: float | None = None
    min_cut: Cut | None = None
    wait_s: float = 0.0


class Cursor(NamedTuple):
    """Where the page before ended (cursors.py)."""

    query: str
    """Hash of the query that it belongs to."""
    range: Period
    """What relative times meant on the first page."""
    after: Position
    """The position of the last row."""
    run: int
    applied: Cut
    """Run and cut of the first page. Later pages hold newer events too: a row whose position changed may be missed."""


@dataclass(frozen=True)
class Query:
    """A query over one view. All of it is checked: it can be executed, unless it turns out to be too large.

    `periods` are what rows are about, in order, clipped to the range. `windows` are what the answers of each period are
    computed over: the period itself, or for a rolling window a longer range that ends with it.
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
    having: TypedExpression | None = None
    order: tuple[Order, ...] = ()
    limit: int = 1000
    cursor: Cursor | None = None
    previous: tuple[Period, ...] | None = None
    """The windows of the periods before, one for each of `periods`, where `compare` asks for them."""
    fill: bool = False
    explain: bool = False
    freshness: Freshness = field(default_factory=Freshness)

    def without_page(self) -> str:
        """The same text for every page of a query: what a cursor belongs to, and a part of the ETag.

        A new field that decides which rows there are, or what is in them, belongs in here.
        """
        return self._without_page

    @cached_property
    def _without_page(self) -> str:
        parts = (
            self.view.hash, self.range, self.grain, self.tz, hash(self.windows), self.filters, self.by, self.answers,
            self.quantiles, self.having.sql if self.having else None, self.order, self.previous is not None, self.fill,
        )  # fmt: skip
        return repr(parts)

    def page(self) -> tuple[int, Cursor | None, bool]:
        """What may differ from page to page: the other part of the ETag."""
        return self.limit, self.cursor, self.explain
