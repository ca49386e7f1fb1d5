"""The laws of a view, checked on generated events: any split, order and repetition gives the same answers.

Views made of our aggregates keep these laws; this is how we know. `views/on_spark/laws.py` compares Spark too.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from functools import cached_property, reduce
from math import log
from typing import Any

import sqlglot
from sqlglot import exp

from views import in_memory
from views.aggregates import Algebra
from views.aggregates.counting import ROUNDED, AverageAlgebra, RoundedVariance, SumAlgebra
from views.aggregates.decayed_rate import BLOCK, MILLIS, DecayedRateAlgebra
from views.aggregates.moments import RoundedMoments
from views.aggregates.top_k import TopKAlgebra
from views.aggregates.trend import DAY_MS, HOUR_MS, RoundedTrend
from views.derived import Derived
from views.in_memory import Event, Group
from views.sample_events import generate
from views.states import pack, unpack
from views.types import EPOCH
from views.view import View

ADDING_DOUBLES = SumAlgebra | AverageAlgebra | RoundedVariance | RoundedMoments | RoundedTrend | DecayedRateAlgebra
SMALLEST_DOUBLE = Fraction(5e-324)
Answers = dict[Group, dict[str, Any]]
Groups = dict[Group, dict[str, Any]]
Way = tuple[str, Answers]
"""How the answers were computed, and the answers."""
SUM_STEP, SPREAD_STEP, TREND_STEP, SHAPE_STEP = (Fraction(1, 2**bits) for bits in (52, 50, 48, 46))
"""By how much of what it adds one addition may be off: what the aggregates of doubles state."""


def check_laws(view: View, *, seed: int = 0, events: int = 500) -> list[str]:
    """The laws that a view breaks on so many generated events, one sentence each; empty: every law holds."""
    generated = [record.event for record in generate(view.source, events, seed, views=[view])]
    once = list({event.event_id: event for event in reversed(generated)}.values())
    reference = Reference(view, tuple(once))
    chance = random.Random(seed)  # noqa: S311  # no secret
    ways = (
        *_splits(view, once, chance),
        *_zeros(view, once),
        *_bytes(view, once),
        *_duplicates(view, generated, chance),
        *_retention(view, generated, chance),
    )
    return [
        *(problem for how, answers in ways for problem in reference.differences(how, answers)),
        *_impure(view, once),
        *_not_json(view, reference.answers),
    ]


def hints(view: View, *, seed: int = 0, events: int = 500) -> list[str]:
    """What those events did not exercise: answers that none of them reached. This breaks no law."""
    groups = in_memory.fold(view, [record.event for record in generate(view.source, events, seed, views=[view])])
    if not groups:
        return ["No generated event meets its where: nothing was checked."]
    zeros = {name: algebra.to_parts(algebra.zero()) for name, algebra in view.algebras.items()}
    unreached = [
        name
        for name, algebra in view.algebras.items()
        if all(algebra.to_parts(state[name]) == zeros[name] for state in groups.values())
    ]
    answers = in_memory.present(view, groups)
    unreached += [name for name in view.derived if all(answer[name] is None for answer in answers.values())]
    return [f"Answer {name!r} has no value in any group: no generated event reached it." for name in unreached]


# ---- the same events in other ways -------------------------------------------


def _splits(view: View, events: list[Event], chance: random.Random) -> Iterator[Way]:
    for count in (1, 2, 3, 10):
        mixed = chance.sample(events, len(events))
        ends = sorted(chance.randint(0, len(mixed)) for _ in range(count - 1))  # some parts may be empty
        parts = [mixed[begin:end] for begin, end in zip([0, *ends], [*ends, len(mixed)], strict=True)]
        yield f"in another order, in {count} parts", _merged([in_memory.fold(view, part) for part in parts], view)
    pieces = [in_memory.fold(view, [event]) for event in chance.sample(events, len(events))]
    yield "event by event, merged one after the other", _merged(pieces, view)
    yield "event by event, merged in pairs", _merged_in_pairs(pieces, view, chance)


def _merged(parts: Iterable[Groups], view: View) -> Answers:
    return in_memory.present(view, reduce(lambda left, right: in_memory.merge(view, left, right), parts, {}))


def _merged_in_pairs(parts: Iterable[Groups], view: View, chance: random.Random) -> Answers:
    """Merge two random parts at a time until one is left."""
    left = list(parts)
    while len(left) > 1:
        chance.shuffle(left)
        left.append(in_memory.merge(view, left.pop(), left.pop()))
    return in_memory.present(view, left[0] if left else {})


def _zeros(view: View, events: list[Event]) -> Iterator[Way]:
    groups = in_memory.fold(view, events)
    zeros: Groups = {group: {name: algebra.zero() for name, algebra in view.algebras.items()} for group in groups}
    yield "merged with no events before", _merged([zeros, groups], view)
    yield "merged with no events after", _merged([groups, zeros], view)


def _bytes(view: View, events: list[Event]) -> Iterator[Way]:
    def stored(groups: Groups) -> Groups:
        return {group: unpack(view.algebras, pack(view.algebras, state)) for group, state in groups.items()}

    yield "stored and read again", in_memory.present(view, stored(in_memory.fold(view, events)))
    halves = (events[::2], events[1::2])
    yield "stored in 2 parts and read again", _merged([stored(in_memory.fold(view, half)) for half in halves], view)


def _duplicates(view: View, events: list[Event], chance: random.Random) -> Iterator[Way]:
    repeated = len(events) - len({event.event_id for event in events})
    mixed = chance.sample(events, len(events))
    yield f"with {repeated} duplicates among the events", in_memory.answers(view, mixed)


def _retention(view: View, events: list[Event], chance: random.Random) -> Iterator[Way]:
    """Remove the oldest events twice, each time after a run over the events until then."""
    left, foundation = chance.sample(events, len(events)), in_memory.Foundation()
    ends = {event.partition: event.offset + 1 for event in events}
    for _ in range(2):
        run = {partition: chance.randint(0, end) for partition, end in ends.items()}
        below = {partition: chance.randint(0, end) for partition, end in run.items()}
        of_run = [event for event in left if event.offset < run[event.partition]]
        foundation = foundation.extended(view, of_run, below)
        left = [event for event in left if event.offset >= below[event.partition]]
    yield f"after {len(events) - len(left)} old events were removed", in_memory.answers(view, left, foundation)


def _impure(view: View, events: list[Event]) -> Iterator[str]:
    """Merging must not change its arguments: others may still hold them."""
    left, right = in_memory.fold(view, events[::2]), in_memory.fold(view, events[1::2])
    spoilt = set()
    for group in left.keys() & right.keys():
        for name, algebra in view.algebras.items():
            sides = left[group][name], right[group][name]
            before = [algebra.to_parts(side) for side in sides]
            algebra.merge(*sides)
            if [algebra.to_parts(side) for side in sides] != before:
                spoilt.add(name)
    yield from (
        f"View {view.name!r}, answer {name!r}: merging changes the states it merges." for name in sorted(spoilt)
    )


def _not_json(view: View, answers: Answers) -> Iterator[str]:
    for name in view.answers:
        try:
            json.dumps([answer[name] for answer in answers.values()], allow_nan=False)
        except (TypeError, ValueError) as error:
            yield f"View {view.name!r}, answer {name!r}: JSON cannot hold it ({error})."


# ---- the reference -----------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """What a view must answer over some events without duplicates, and how far an answer may be off."""

    view: View
    events: tuple[Event, ...]

    @cached_property
    def answers(self) -> Answers:
        """All events folded one after the other."""
        return in_memory.present(self.view, in_memory.fold(self.view, self.events))

    @cached_property
    def pieces(self) -> dict[Group, list[dict[str, Any]]]:
        """The state of each event alone, by group: what bounds are computed from."""
        found: dict[Group, list[dict[str, Any]]] = {}
        for event in self.events:
            for group, state in in_memory.fold(self.view, [event]).items():
                found.setdefault(group, []).append(state)
        return found

    def differences(self, how: str, got: Answers) -> Iterator[str]:
        """Where other answers differ: the first group for each answer."""
        for group in sorted(self.answers.keys() ^ got.keys(), key=repr)[:1]:
            has, misses = (how, "all at once") if group in got else ("all at once", how)
            yield f"View {self.view.name!r}: {self._location(group)} has answers {has}, and none {misses}."
        for name in self.view.answers:
            for group, answers in self.answers.items():
                if group in got and not self._is_right(group, name, answers[name], got[group][name]):
                    yield (
                        f"View {self.view.name!r}, answer {name!r}: {got[group][name]!r} {how}, {answers[name]!r} "
                        f"all at once, in {self._location(group)}."
                    )
                    break

    def _is_right(self, group: Group, name: str, wanted: Any, got: Any) -> bool:
        if wanted == got:
            return True
        if name in self.view.derived:
            return bool(self._rounded_inputs(name))  # its inputs were checked, and the rest is arithmetic
        return is_within_bound(self.view.algebras[name], [piece[name] for piece in self.pieces[group]], got)

    def _rounded_inputs(self, name: str) -> set[str]:
        answer = self.view.answers[name]
        text = answer.of if isinstance(answer, Derived) else ""
        used = {column.name for column in sqlglot.parse_one(text, dialect="spark").find_all(exp.Column)}
        return {each for each in used if is_rounded(self.view.algebras[each])}

    def _location(self, group: Group) -> str:
        begin = EPOCH + timedelta(microseconds=group[0])
        keys = dict(zip(self.view.keys, group[1], strict=True))
        return f"the bucket {begin:%Y-%m-%dT%H:%M:%S}Z of {keys}" if keys else f"the bucket {begin:%Y-%m-%dT%H:%M:%S}Z"


# ---- the stated bounds -------------------------------------------------------


def is_rounded(algebra: Algebra) -> bool:
    """Whether it adds doubles: their sum depends on the order, within a bound."""
    return isinstance(algebra, ADDING_DOUBLES) and ROUNDED in (algebra.error or "")


def is_within_bound(algebra: Algebra, pieces: list[Any], got: Any) -> bool:
    """Whether an answer is as near to the true one as its aggregate states; `pieces` are the states of single events.

    What states no bound must be identical, and was not, or nobody would ask.
    """
    match algebra:
        case SumAlgebra() if is_rounded(algebra):
            return _is_near(got, _sum(pieces), _rounding(pieces))
        case AverageAlgebra() if is_rounded(algebra):
            values = [total for count, total in pieces if count]
            return bool(values) and _is_near(got, _sum(values) / len(values), _rounding(values) / len(values))
        case RoundedVariance():
            return _is_variance(algebra, [Fraction(mean) for count, mean, _ in pieces if count], got)
        case RoundedMoments():
            return _is_shape(algebra, [Fraction(piece[1]) for piece in pieces if piece[0]], got)
        case RoundedTrend():
            return _is_trend([piece for piece in pieces if piece[0]], got)
        case DecayedRateAlgebra() if is_rounded(algebra):
            return _is_rate(algebra, [piece for piece in pieces if piece[0] is not None], got)
        case TopKAlgebra():
            return _is_ranking(algebra, Counter(value for _, table in pieces for value in table.counts), got)
    return False


def _sum(values: list[float]) -> Fraction:
    return sum(map(Fraction, values), Fraction(0))


def _rounding(values: list[float]) -> Fraction:
    return (len(values) + 1) * SUM_STEP * _sum([abs(value) for value in values])  # 1 more: to present it


def _is_near(got: float | None, exact: Fraction, bound: Fraction) -> bool:
    return got is not None and abs(Fraction(got) - exact) <= bound


def _is_variance(algebra: RoundedVariance, values: list[Fraction], got: float | None) -> bool:
    below = len(values) if algebra.population else len(values) - 1
    if got is None or below <= 0:
        return False
    mean = sum(values, Fraction(0)) / len(values)
    spread = sum(((value - mean) * (value - mean) for value in values), Fraction(0))
    squares = sum((value * value for value in values), Fraction(0))
    found = Fraction(got) * Fraction(got) if algebra.root else Fraction(got)
    return abs(found * below - spread) <= (len(values) + 2) * SPREAD_STEP * squares


def _is_shape(algebra: RoundedMoments, values: list[Fraction], got: float | None) -> bool:
    """Whether some second and last moments within their bounds give it; anything where the second may be 0."""
    count = len(values)
    mean = sum(values, Fraction(0)) / max(count, 1)

    def bounds(power: int) -> tuple[float, float]:
        moment = sum(((value - mean) ** power for value in values), Fraction(0))
        off = (count + 2) * SHAPE_STEP * sum((abs(value) ** power for value in values), Fraction(0))
        return float(moment - off), float(moment + off)

    least, most = bounds(2)
    if least <= 0 or got is None:
        return least <= 0
    asked, scale = (got, count**0.5) if algebra.power == 3 else (got + 3, count)
    ends = [scale * last / two ** (algebra.power / 2) for last in bounds(algebra.power) for two in (least, most)]
    slack = 1e-12 * (abs(asked) + 3)
    return bool(min(ends) - slack <= asked <= max(ends) + slack)


def _is_trend(pieces: list[Any], got: float | None) -> bool:
    """By how much the sum of products of distances may be off; the rest is of whole numbers."""
    if got is None:
        return False
    times, values = [piece[1] for piece in pieces], [Fraction(piece[3]) for piece in pieces]
    mean = Fraction(sum(times), len(times))
    spread = sum(((time - mean) ** 2 for time in times), Fraction(0))
    product = sum(((time - mean) * value for time, value in zip(times, values, strict=True)), Fraction(0))
    reach = (max(times) - min(times) + DAY_MS) * sum(map(abs, values), Fraction(0))
    bound = (len(times) + 2) * TREND_STEP * reach + SMALLEST_DOUBLE
    return bool(abs(Fraction(got) / HOUR_MS * spread - product) <= bound)


def _is_rate(algebra: DecayedRateAlgebra, pieces: list[Any], got: float | None) -> bool:
    """As a sum of weighted values."""
    if got is None:
        return False
    last = max(piece[0] for piece in pieces)
    scale = Fraction(log(2)) * MILLIS / algebra.half_life_ms / algebra.weight(last)
    weighted = [(Fraction(new) + Fraction(old) / 2**BLOCK) * scale
                for new, old in (algebra.as_of(last, piece) for piece in pieces)]  # fmt: skip
    bound = (len(pieces) + 8) * SUM_STEP * sum(map(abs, weighted), Fraction(0))
    return abs(Fraction(got) - sum(weighted, Fraction(0))) <= bound + SMALLEST_DOUBLE


def _is_ranking(algebra: TopKAlgebra, counts: Counter[str], got: list[dict[str, Any]]) -> bool:
    """More values than there is room for: each count is off by at most n / room."""
    if len(counts) <= algebra.room.capacity:
        return False
    off = -(-counts.total() // algebra.room.items)
    return all(abs(entry["count"] - counts[entry["value"]]) <= off for entry in got)
