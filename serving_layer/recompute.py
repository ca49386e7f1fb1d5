"""A question answered from scratch: every fact of the master dataset below a cut, by the reference interpreter.

Slow, and without any of the parts that it proves: no Spark, no Redis, no index, no merge of two sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from master_dataset.cut import Cut
from master_dataset.facts import Wanted, read_facts
from serving_layer.question import Filter, Period, Question
from views import in_memory, states
from views.in_memory import Event, Key

COLUMNS = ["partition", "offset", "event_id", "event_time", "event"]
Recomputed = dict[tuple[Period, Key], dict[str, Any]]
"""(Period, values of `by`) -> answers."""


def recompute(question: Question, events: Iterable[Event]) -> Recomputed:
    """What the question's rows must be over these events, all of them and however they are ordered, paged or narrowed.

    Rows that are there only because of `fill` are not among them.
    """
    view = question.view
    groups = in_memory.fold(view, in_memory.counted(events))
    found: dict[tuple[Period, Key], dict[str, Any]] = {}
    for (micros, key), state in groups.items():
        named = dict(zip(view.keys, key, strict=True))
        if not all(_passes(each, named[each.key]) for each in question.filters):
            continue
        part = tuple(named[name] for name in question.by)
        for period, window in zip(question.periods, question.windows, strict=True):
            if window.start <= micros // 1_000_000 < window.end:
                known = found.get((period, part))
                found[period, part] = state if known is None else states.merge(view.algebras, known, state)
    return {place: _asked(question, view.present(state)) for place, state in found.items()}


def events_below(table: Path, cut: Cut, start: Cut | None = None) -> Iterator[Event]:
    """The valid events of a master table below a cut, and at or above `start`; copies are among them."""
    if not any(cut.values()):
        return
    for batch in read_facts(table, Wanted(start=start or {}, end=cut), COLUMNS):
        for row in batch.to_pylist(maps_as_pydicts="strict"):
            yield Event(row["partition"], row["offset"], row["event_id"], row["event_time"], row["event"])


def _passes(wanted: Filter, value: Any) -> bool:
    match wanted.kind:
        case "is":
            return value in wanted.values
        case "not":
            return value not in wanted.values
    return isinstance(value, str) and value.startswith(wanted.values)


def _asked(question: Question, answers: dict[str, Any]) -> dict[str, Any]:
    return {name: answers[name] for name in question.answers or answers}
