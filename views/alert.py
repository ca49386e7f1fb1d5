"""An alert: a condition on the answers of a view, declared beside it and evaluated whenever they change."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from views.aggregates.quantiles import QuantilesAlgebra
from views.columns import zero
from views.errors import AlertError, DeclarationError, ExpressionError
from views.expressions import Scope, parse_condition
from views.grain import DAY, parse_length
from views.source import NAME
from views.typed_expression import TypedExpression
from views.types import DOUBLE
from views.view import View

PREVIOUS = "previous"
BEFORE = "previous_"
"""Prefix of the names of the previous period's answers."""
SHORTEST_KEEP_S = 10
MAX_BUCKETS = 100
LONGEST_SILENCE_S = 7 * DAY
TEXTS = ("over", "compare", "silence", "keep", "doc")


@dataclass(frozen=True)
class Alert:
    """Notify when a condition on answers holds: once for each key and episode, and once more when it is resolved.

        many_attempts = Alert("many_attempts", card_attempts, when="attempts > 3")
        slow_page = Alert("slow_page", page_latency, when="p95_ms > 800", over="1h", for_buckets=3)
        fewer_hits = Alert("fewer_hits", page_hits, when="hits < previous_hits / 2", by=(), compare="1d", settled=True)
        no_visits = Alert("no_visits", page_hits, by=(), silence="5m")

    `when` is a condition over the view's numeric answers, of each key (`by`: which of the view's keys, all of them
    unless given) and each period (`over`: a multiple of the view's grain, the grain unless given). The quantiles of an
    answer `ms` are `p50_ms`, `p95_ms` and so on. With `compare` the answers of the period before ("previous"), or of so
    long ago ("1d"), are there as `previous_...`.

    `for_buckets` periods in a row must be so before it fires. `settled`: a period is judged when it is over, not while
    it fills: for what is true of every beginning, as "fewer than". Periods that are no further apart than `keep` are
    one episode. `silence`: fires when a key has no event for so long. docs/alerts.md has all of it.
    """

    name: str
    view: View
    when: str = ""
    by: tuple[str, ...] | None = None
    over: str = ""
    for_buckets: int = 1
    compare: str = ""
    silence: str = ""
    settled: bool = False
    keep: str = ""
    webhooks: tuple[str, ...] | None = None
    """Names of the webhooks to notify; None: all."""
    doc: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise AlertError(f"Alert {self.name!r}: {problem}")
        if self.by is None:
            object.__setattr__(self, "by", tuple(self.view.keys))
        for place in (self.step_s, self.shift_s, self.keep_s, self.silence_s, self.condition, self.hash):
            del place

    # ---- what was declared, checked ----

    @property
    def keys(self) -> tuple[str, ...]:
        """The view's keys by which its episodes are distinguished."""
        return self.by or ()

    @cached_property
    def step_s(self) -> int:
        """How long its periods are."""
        found = self._length("over", self.over) if self.over else self.view.bucket.seconds
        if DAY % found or found % self.view.bucket.seconds:
            raise AlertError(
                f"Alert {self.name!r}: over is {self.over!r}; it should be a multiple of the grain of "
                f"{self.view.name!r}, which is {self.view.grain}, that divides a day."
            )
        return found

    @cached_property
    def shift_s(self) -> int:
        """How long before a period the period lies that it is compared with; 0: no comparison."""
        if self.compare in ("", PREVIOUS):
            return self.step_s if self.compare else 0
        found = self._length("compare", self.compare)
        if found % self.step_s:
            raise AlertError(
                f"Alert {self.name!r}: compare is {self.compare!r}; it should be {PREVIOUS!r} or a multiple of its "
                f"period, {self.step_s} s."
            )
        return found

    @cached_property
    def keep_s(self) -> int:
        """How long after its last period an episode is over."""
        found = self._length("keep", self.keep) if self.keep else max(self.step_s, SHORTEST_KEEP_S)
        if found < self.step_s:
            raise AlertError(
                f"Alert {self.name!r}: keep is {self.keep!r}, less than a period of {self.step_s} s: an episode would "
                "be over before the next period can be judged. Give more, or leave it out."
            )
        return found

    @cached_property
    def silence_s(self) -> int:
        """For how long there must be no event; 0: it is no alert on silence."""
        found = self._length("silence", self.silence) if self.silence else 0
        if found > LONGEST_SILENCE_S:
            raise AlertError(f"Alert {self.name!r}: silence is {self.silence!r}; it should be at most 7d.")
        return found

    @cached_property
    def condition(self) -> TypedExpression | None:
        """The condition; None: it is an alert on silence."""
        return self.condition_for(self.view) if self.when else None

    @cached_property
    def hash(self) -> str:
        """A hash of what the alert means."""
        meaning = {
            "name": self.name, "view": self.view.name, "when": self.condition.sql if self.condition else None,
            "by": self.keys, "step_s": self.step_s, "for_buckets": self.for_buckets, "shift_s": self.shift_s,
            "silence_s": self.silence_s, "settled": self.settled, "keep_s": self.keep_s,
        }  # fmt: skip
        return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()

    def condition_for(self, view: View) -> TypedExpression:
        """Its condition over the answers of a version of its view. AlertError where that version lacks one."""
        try:
            return parse_condition(self.when, alert_scope(view, compared=bool(self.shift_s)))
        except ExpressionError as error:
            raise AlertError(f"Alert {self.name!r}, when: {error}") from None

    # ---- checks ----

    def _length(self, name: str, text: str) -> int:
        try:
            return parse_length(text)
        except DeclarationError as error:
            raise AlertError(f"Alert {self.name!r}: {name}: {error}") from None

    def _problems(self) -> Iterator[str]:
        """What is wrong with the shape. Durations and the condition report their own problems."""
        given: Any = self
        if not isinstance(given.name, str) or not re.fullmatch(NAME, given.name):
            yield "a name consists of lower-case letters, digits and underscores, and begins with a letter."
        if not isinstance(given.view, View):
            yield f"view is {given.view!r}; it should be a View."
        for name in TEXTS:
            if not isinstance(getattr(given, name), str):
                yield f"{name} is {getattr(given, name)!r}; it should be a text."
        if not isinstance(given.when, str) or bool(given.when.strip()) == bool(given.silence):
            yield "it should have either when='attempts > 3', a condition, or silence='5m', and not both."
        yield from _names("by", given.by, "('url',)")
        for name in given.by or ():
            if name not in given.view.keys:
                there = ", ".join(given.view.keys) or "none"
                yield f"by names {name!r}, which is not a key of {given.view.name!r}. There are: {there}."
        yield from _names("webhooks", given.webhooks, "('operations',)")
        if type(given.for_buckets) is not int or not 1 <= given.for_buckets <= MAX_BUCKETS:
            yield f"for_buckets is {given.for_buckets!r}; it should be a whole number, 1 to {MAX_BUCKETS}."
        if not isinstance(given.settled, bool):
            yield f"settled is {given.settled!r}; it should be True or False."
        if given.silence and (given.over or given.compare or given.settled or given.for_buckets != 1 or given.keep):
            yield "silence stands alone: over, for_buckets, compare, settled and keep are for a condition (when)."


def _names(what: str, given: Any, example: str) -> Iterator[str]:
    if given is None:
        return
    if not isinstance(given, tuple) or not all(isinstance(name, str) for name in given):
        yield f"{what} is {given!r}; it should be a tuple of names like {example}."
    elif len(set(given)) < len(given):
        yield f"{what} is {given!r}; each name should appear once."


def alert_scope(view: View, *, compared: bool) -> Scope:
    """What names mean in `when`: the view's numeric answers, its quantiles, and those of the period before."""
    fields = dict(view.answer_scope().fields)
    for answer, algebra in view.algebras.items():
        if isinstance(algebra, QuantilesAlgebra) and not algebra.is_one:
            for share in algebra.names:
                name = quantile_name(share, answer)
                fields.setdefault(name, TypedExpression(DOUBLE, f"try_cast(`{name}` AS double)", _reader(name)))
    if compared:
        for name, typed in list(fields.items()):
            before = BEFORE + name
            if before in fields:
                raise ExpressionError(
                    f"the view has an answer {before!r}, which is what compare calls {name!r} of the period before. "
                    "Rename that answer."
                )
            fields[before] = TypedExpression(typed.type, f"try_cast(`{before}` AS {typed.type.ddl()})", _reader(before))
    return Scope(fields, "numeric answer")


def numbers(view: View, answers: Mapping[str, Any]) -> dict[str, Any]:
    """Presented answers -> what a condition computes with: numbers by name, quantiles among them."""
    found = view.numbers(answers)
    for answer, algebra in view.algebras.items():
        if isinstance(algebra, QuantilesAlgebra) and not algebra.is_one:
            values = answers.get(answer) or {}
            for share in algebra.names:
                found.setdefault(quantile_name(share, answer), values.get(share))
    return found


def compared(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a period, and of the one before under their names there."""
    return {**now, **{BEFORE + name: value for name, value in before.items()}}


def nothing(view: View) -> dict[str, Any]:
    """The answers over no events."""
    return view.present(zero(view))


def quantile_name(share: str, answer: str) -> str:
    """`p99.9` of `ms` -> `p99_9_ms`."""
    return f"{share.replace('.', '_')}_{answer}"


def _reader(name: str) -> Any:
    return lambda row: row.get(name)
