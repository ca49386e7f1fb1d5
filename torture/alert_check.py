"""Check at the end that every alert episode fired once, that none is missing, and that none is false.

Only the journal of the alert process is read. The condition stays true once it is true (a count of so many or more),
so it does not matter when the process evaluated it: each true period lies in one episode that fired, and each episode
begins and ends with a true period.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from infra.clients.kafka import librdkafka_config
from master_dataset.cut import Cut, is_below
from serving_layer.alerts.episodes import Episode, EpisodeState
from serving_layer.alerts.journal import Journal, journal_path
from torture.expected_rows import expected_rows
from torture.installation import Installation
from torture.questions import iso, whole
from torture.truth import Truth
from torture.wait import wait_for
from views.alert import Alert, numbers
from views.declarations import ALERTS_TOPIC

MAX_REPORTED = 20
READ_S = 30.0
KeyPeriod = tuple[tuple[Any, ...], int]
"""A key, and the beginning of a period."""


def check_alerts(installation: Installation, truth: Truth, deadline_s: float) -> tuple[int, list[str]]:
    """Wait until everything was evaluated and notified; returns how many episodes fired, and what is wrong."""
    with closing(Journal(journal_path(installation.settings))) as journal:
        end = dict(truth.end)
        wait_for(
            "the alert process to evaluate everything", lambda: _has_looked(journal, installation, end), deadline_s
        )
        wait_for("every notification", lambda: not journal.outbox.all(), deadline_s)
        fired = [each for each in journal.episodes.all() if each.fired_at is not None]
        firing = Counter(_firing(body for _, _, body in _all_transitions(journal)))
    problems: list[str] = []
    for alert in installation.declared.alerts_of(installation.source_name):
        ours = [each for each in fired if each.alert == alert.name]
        problems += judge(alert.step_s, true_periods(alert, truth, end), ours)
    problems += misdelivered([each.id for each in fired], firing, _by_kafka(installation))
    return len(fired), problems[:MAX_REPORTED]


def true_periods(alert: Alert, truth: Truth, cut: Cut) -> set[KeyPeriod]:
    """By the reference interpreter, over everything below the cut."""
    query = whole(alert.view, truth.times()) | {"by": ",".join(alert.keys), "grain": alert.over or alert.view.grain}
    condition = alert.condition
    if condition is None:
        raise ValueError(f"Alert {alert.name!r} is about silence, which does not stay so.")
    rows = expected_rows(alert.view, {name: value for name, value in query.items() if value}, cut, truth)
    return {
        (tuple(key), begin)
        for (begin, *key), answers in rows.items()
        if condition.evaluate(numbers(alert.view, answers))
    }


def judge(step_s: int, true: Collection[KeyPeriod], fired: Sequence[Episode]) -> Iterator[str]:
    """What is wrong with these episodes."""
    held: Counter[KeyPeriod] = Counter()
    for each in fired:
        held.update((each.key, period) for period in range(each.first, each.last + step_s, step_s))
        for period in {each.first, each.last}:
            if (each.key, period) not in true:
                yield f"{each.id} fired, and {each.key} at {iso(period)} is not true"
    for key, period in true:
        if held[key, period] != 1:
            yield f"{key} at {iso(period)} is true, and is in {held[key, period]} episodes that fired"


def misdelivered(fired: Sequence[str], firing: Counter[str], by_kafka: Collection[str]) -> Iterator[str]:
    """An episode fires once; it is sent to Kafka at least once, under its own id."""
    for each in fired:
        if firing[each] != 1:
            yield f"{each} fired {firing[each]} times"
        if each not in by_kafka:
            yield f"{each} fired, and was never sent to {ALERTS_TOPIC}"
    for each in sorted({*firing, *by_kafka} - {*fired}):
        yield f"{each} was notified, and never fired"


def _has_looked(journal: Journal, installation: Installation, end: Cut) -> bool:
    position = journal.positions.get(installation.source_name)
    return position is not None and is_below(end, position.cut)


def _all_transitions(journal: Journal) -> Iterator[tuple[int, str, str]]:
    after = 0
    while found := journal.transitions.after(after):
        yield from found
        after = found[-1][0]


def _by_kafka(installation: Installation) -> set[str]:
    """The episodes whose firing is in the topic of alerts."""
    consumer = Consumer(
        {
            **librdkafka_config(installation.settings, installation.addresses.kafka),
            "group.id": "torture-alerts",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
        }
    )
    try:
        location = TopicPartition(ALERTS_TOPIC, 0, 0)
        _, end = consumer.get_watermark_offsets(location, timeout=READ_S)
        consumer.assign([location])
        bodies: list[str] = []

        def has_read() -> bool:
            for message in consumer.consume(500, timeout=0.5):
                if message.error() is None:
                    bodies.append((message.value() or b"").decode())
            return sum(each.offset for each in consumer.position([location])) >= end

        wait_for(f"{ALERTS_TOPIC} to be read", lambda: not end or has_read(), READ_S)
    finally:
        consumer.close()
    return set(_firing(bodies))


def _firing(bodies: Iterable[str]) -> Iterator[str]:
    for body in bodies:
        notification = json.loads(body)
        if notification["state"] == str(EpisodeState.FIRING):
            yield notification["id"]
