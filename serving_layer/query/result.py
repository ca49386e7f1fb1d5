"""The result of a query: the rows of a page, and what they are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from master_dataset.cut import Cut
from serving_layer.query.model import Period


@dataclass(frozen=True)
class BatchPart:
    """The run of a result. `read`: whether the range needed it."""

    run: int
    cut: Cut
    published: float
    read: bool


@dataclass(frozen=True)
class SpeedPart:
    """The speed view of a result. `lag_s`: how far it is behind Kafka, None where that is unknown."""

    applied: Cut
    published_run: int
    lag_events: int | None
    lag_s: float | None
    read: bool


@dataclass(frozen=True)
class ResultRow:
    """One row: a period, the values of `by`, the answers by name."""

    period: Period
    key: tuple[Any, ...]
    answers: dict[str, Any]
    previous: dict[str, Any] | None = None
    explain: dict[str, dict[str, Any]] | None = None
    """`batch`, `speed` and `merged` answers."""


@dataclass(frozen=True)
class Provenance:
    """What a result is made of: exactly the events below `cut`. `why`: why it is degraded. `meta` in JSON."""

    view: str
    version: str
    source: str
    range: Period
    grain: str
    tz: str
    batch: BatchPart
    speed: SpeedPart | None
    cut: Cut
    complete: bool
    degraded: bool
    why: str | None
    answers: dict[str, dict[str, Any]]
    """For each answer: {"exact": true}, or {"exact": false, "error": "usually within 1.6%"}."""
    etag: str
    shortened_keys: bool = False
    """Whether a key of its rows or filters is the short form of a long text (views/short_texts.py)."""
    since: dict[str, Any] | None = None
    """The cut and day from which on the view counts, if older events were removed before it was declared."""


@dataclass(frozen=True)
class Result:
    """The rows of one page, the cursor of the next, and what they are made of."""

    by: tuple[str, ...]
    rows: list[ResultRow]
    meta: Provenance
    next: str | None = field(default=None)
