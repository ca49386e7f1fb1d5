"""The records of a run, always the same for a seed: Zipf keys, duplicates, late ones, poison, in no good order."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import accumulate, count
from typing import Literal

from torture.poison import Poison, poison_for
from views.in_memory import Event
from views.sample_events import START, encode, generate
from views.source import Source
from views.view import View

STEP_S = 2
"""Seconds of event time from one event to the next: a quarter of an hour of load is a day of events."""
DUPLICATES, LATE, VERY_LATE, POISONED, BY_REST = 0.02, 0.05, 0.01, 0.005, 0.3
HOUR_S, TWO_DAYS_S = 3600, 2 * 24 * 3600
JITTER_S = 90
HOUR_BEFORE_S = 3500
"""How much older an event is than its duplicate of an hour later, by Kafka's timestamps."""
ZIPF_VALUES, ZIPF_POWER = 60, 1.2
CHUNK = 500
HISTORY_DUPLICATES = 0.05
DuplicateKind = Literal["near", "hour", "publish", "partitions"]
DUPLICATE_KINDS: tuple[DuplicateKind, ...] = ("near", "hour", "publish", "partitions")


@dataclass(frozen=True)
class PlannedRecord:
    """A record that is to be sent. `age_s` is how old it claims to be when it is (raw Kafka only)."""

    number: int
    value: bytes | None
    partition: int
    event: Event | None = None
    poison: Poison | None = None
    duplicate: DuplicateKind | None = None
    by_rest: bool = False
    age_s: int = 0

    @property
    def event_id(self) -> str:
        """The event's id; empty for poison."""
        return self.event.event_id if self.event else ""


def planned_records(source: Source, views: list[View], seed: int) -> Iterator[PlannedRecord]:
    """All records of a run, without end."""
    chance = random.Random(f"load {seed}")  # noqa: S311  # made-up events, no secret
    events, poisons = _events(source, views, seed, chance, f"t{seed}", _event_time), poison_for(source)
    recent: deque[PlannedRecord] = deque(maxlen=40)
    waiting: dict[int, PlannedRecord] = {}
    for number in count():
        draw = chance.random()
        if number in waiting:
            made = waiting.pop(number)
        elif draw < POISONED:
            poison = chance.choice(poisons)
            partition = chance.randrange(source.partitions)
            made = PlannedRecord(number, poison.value, partition, poison=poison)
        elif draw < POISONED + DUPLICATES / 2 and recent:
            made = _duplicate_now(chance.choice(recent), chance, source.partitions)
        else:
            made = next(events)
            if draw < POISONED + DUPLICATES:  # its duplicate comes later
                made = _with_duplicate_later(made, number, chance, waiting)
            recent.append(made)
        yield replace(made, number=number)


def history(source: Source, views: list[View], chance: random.Random, count: int) -> list[PlannedRecord]:
    """Records of the two days before the load, the oldest first, with duplicates among them: as an import has them.

    No poison: an import leaves out what is no event.
    """
    seed = chance.randrange(10**9)

    def time_of(number: int, chance: random.Random) -> datetime:
        before_s = TWO_DAYS_S * (1 - number / count)
        return START - timedelta(seconds=before_s - chance.randrange(JITTER_S), microseconds=chance.randrange(10**6))

    events = _events(source, views, seed, chance, f"h{seed}", time_of)
    made: list[PlannedRecord] = []
    for number in range(count):
        is_duplicate = made and chance.random() < HISTORY_DUPLICATES
        known = _duplicate_now(chance.choice(made), chance, source.partitions) if is_duplicate else next(events)
        made.append(replace(known, number=number, by_rest=False))
    return made


def _duplicate_now(known: PlannedRecord, chance: random.Random, partitions: int) -> PlannedRecord:
    if chance.random() < 0.5:
        return replace(known, duplicate="near", age_s=0)
    other = (known.partition + 1 + chance.randrange(max(partitions - 1, 1))) % partitions
    return replace(known, duplicate="partitions", partition=other, by_rest=False, age_s=0)


def _with_duplicate_later(
    made: PlannedRecord, number: int, chance: random.Random, waiting: dict[int, PlannedRecord]
) -> PlannedRecord:
    is_hour = chance.random() < 0.5
    position = number + chance.randrange(400, 2000)
    while position in waiting:
        position += 1
    waiting[position] = replace(made, duplicate="hour" if is_hour else "publish")
    return replace(made, by_rest=False, age_s=HOUR_BEFORE_S) if is_hour else made


def _events(
    source: Source,
    views: list[View],
    seed: int,
    chance: random.Random,
    name: str,
    time_of: Callable[[int, random.Random], datetime],
) -> Iterator[PlannedRecord]:
    """Events without end; their ids begin with `name`."""
    texts = [field.name for field in source.schema if field.type.kind == "string" and field.name != source.id_field]
    weights = list(accumulate(1 / (rank + 1) ** ZIPF_POWER for rank in range(ZIPF_VALUES)))
    number = 0
    for chunk in count():
        for record in generate(source, CHUNK, seed * 1_000_003 + chunk, views=views, duplicates=0):
            fields = dict(record.event.fields)
            for text in texts:
                if fields.get(text) is not None and chance.random() < 0.8:
                    (rank,) = chance.choices(range(ZIPF_VALUES), cum_weights=weights)
                    fields[text] = f"{text}-{rank}"
            at = time_of(number, chance)
            event_id = f"{name}-{number}"
            fields |= {source.id_field: event_id, source.time_field: at}
            partition = chance.randrange(source.partitions)
            event = Event(partition, -1, event_id, at, fields)
            is_rest = chance.random() < BY_REST
            yield PlannedRecord(number, encode(fields).encode(), partition, event=event, by_rest=is_rest)
            number += 1


def _event_time(number: int, chance: random.Random) -> datetime:
    at = START + timedelta(seconds=number * STEP_S + chance.randrange(JITTER_S), microseconds=chance.randrange(10**6))
    draw = chance.random()
    if draw < VERY_LATE:
        return at - timedelta(seconds=chance.randrange(HOUR_S, TWO_DAYS_S))
    if draw < VERY_LATE + LATE:
        return at - timedelta(seconds=chance.randrange(HOUR_S))
    return at
