"""Feeds: the changed answers of a view as messages of a compacted topic, each key and bucket with its newest answer.

A message is sent at least once, and those of one key in order: whoever reads to the end has the view as a table. How
far a feed is stands in the journal after Kafka has acknowledged, so a crash sends some of them again, and loses none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import orjson

from hand_off.change_log import Changes
from infra.settings import Settings
from master_dataset.cut import Cut, cut_to_json
from master_dataset.kafka.topics import TopicPlan, topic_configs
from serving_layer.alerts import questions
from serving_layer.alerts.answers import NotNow
from serving_layer.alerts.couriers import WrittenTopic
from serving_layer.alerts.episodes import named
from serving_layer.alerts.journal import Journal, Position
from serving_layer.alerts.payloads import iso
from serving_layer.alerts.questions import Wanted
from serving_layer.engine import QueryEngine
from serving_layer.errors import ServingError
from serving_layer.query.result import Result
from views.feed import Feed

CHUNK = 500
"""Buckets of one question where a feed is filled."""


@dataclass
class Feeder:
    """One feed."""

    settings: Settings
    feed: Feed
    engine: QueryEngine
    journal: Journal
    topic: WrittenTopic
    sent: int = 0

    @property
    def name(self) -> str:
        """Of its position in the journal."""
        return f"feed:{self.feed.name}"

    def begin(self) -> None:
        """It has nothing to take up but its position."""

    def look(self, touched: Changes | None, _since: Callable[[Cut, bytes], Changes | None]) -> bytes | None:
        """Send what was touched, or everything of late where that is not known, or where a run was published."""
        try:
            view = self.engine.served_view(self.feed.view.name)
            run = self.engine.status(view.source.name).batch.run
        except ServingError as error:
            raise NotNow(error.detail) from None
        known = self.journal.position(self.name)
        if touched is None:
            if known is not None and known.run != run:  # a run may have mended answers that nobody touched
                self._fill(known.cut, run)
            return None
        buckets = touched.of(view.hash)
        if buckets is None or known is None:
            self._fill(touched.cut, run)
            return touched.entry_id
        if buckets:
            wanted = Wanted(frozenset(buckets), questions.touched_keys(view, self.feed.keys, buckets))
            self._send(self._answer(wanted))
        self.journal.note_position(self.name, Position(touched.cut, 0.0, known.run))
        return touched.entry_id

    def _fill(self, cut: Cut, run: int) -> None:
        """Send all buckets as far back as was declared, and only then note how far we are."""
        step_s = self.feed.view.bucket.seconds
        now = int(time.time())
        first = now - self.feed.back_s
        buckets = list(range(first - first % step_s, now + step_s, step_s))
        for at in range(0, len(buckets), CHUNK):
            self._send(self._answer(Wanted(frozenset(buckets[at : at + CHUNK]), None)))
        self.journal.note_position(self.name, Position(cut, 0.0, run))

    def _answer(self, wanted: Wanted) -> Result:
        try:
            view = self.engine.served_view(self.feed.view.name)
            question = questions.question(view, self.feed.keys, view.bucket.seconds, wanted, list(view.answers))
            answer = self.engine.execute(question)
        except ServingError as error:
            raise NotNow(error.detail) from None
        if answer.meta.degraded:
            raise NotNow(answer.meta.why or "the answer is not complete")
        return answer

    def _send(self, answer: Result) -> None:
        self.sent += self.topic.send(self._messages(answer))

    def _messages(self, answer: Result) -> Iterator[tuple[bytes, bytes, str]]:
        cut = cut_to_json(answer.meta.cut)
        for row in answer.rows:
            place = {"bucket": iso(row.period.start), **named(self.feed.keys, row.key)}
            value = {
                "view": answer.meta.view,
                **place,
                "answers": row.answers,
                "cut": cut,
                "run": answer.meta.batch.run,
            }
            yield _json(place), _json(value), f"{self.feed.name}"


def feed_topic(settings: Settings, bootstrap: str, feed: Feed) -> WrittenTopic:
    """Its topic, compacted: Kafka keeps the newest message of each key for ever."""
    configs = topic_configs(None, None, compacted=True)
    return WrittenTopic(settings, bootstrap, TopicPlan(feed.topic, feed.view.source.partitions, configs))


def _json(value: Any) -> bytes:
    return orjson.dumps(value, default=_other)


def _other(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else str(value)
