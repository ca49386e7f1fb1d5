"""Feeds: the changed answers of a view as records of a compacted topic, the newest answer of each key and bucket.

A record is sent at least once, and those of one key in order: a consumer that reads to the end has the view as a
table. The journal records the position of a feed after Kafka has acknowledged, so a crash sends some records again and
loses none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import orjson

from hand_off.change_log import Changes
from infra.settings import Settings
from master_dataset.cut import Cut, cut_to_json
from serving_layer.alerts.answers import AnswersIncomplete
from serving_layer.alerts.change_follower import ChangesSince
from serving_layer.alerts.episodes import named
from serving_layer.alerts.journal import Journal
from serving_layer.alerts.notifications import iso
from serving_layer.alerts.output_topics import OutputRecord, OutputTopic
from serving_layer.alerts.queries import QueryScope, build_query, changed_keys
from serving_layer.alerts.tables.positions import FollowerPosition
from serving_layer.engine import QueryEngine
from serving_layer.errors import ServingError
from serving_layer.query.result import Result
from views.feed import Feed

BUCKETS_PER_QUERY = 500


@dataclass
class Feeder:
    """Sends one feed: the consumer of a change follower."""

    settings: Settings
    feed: Feed
    engine: QueryEngine
    journal: Journal
    topic: OutputTopic
    sent: int = 0

    @property
    def name(self) -> str:
        """The name of its position in the journal."""
        return f"feed:{self.feed.name}"

    def resume(self) -> None:
        """Do nothing: a feed has no state but its position."""

    def evaluate(self, changes: Changes | None, _since: ChangesSince) -> bytes | None:
        """Send changed answers; all recent ones if the changes are not known, or after a batch run was published."""
        try:
            view = self.engine.served_view(self.feed.view.name)
            run = self.engine.status(view.source.name).batch.run
        except ServingError as error:
            raise AnswersIncomplete(error.detail) from None
        known = self.journal.positions.get(self.name)
        if changes is None:
            if known is not None and known.run != run:  # a run may have corrected answers that did not change since
                self._send_recent(known.cut, run)
            return None
        buckets = changes.of(view.hash)
        if buckets is None or known is None:
            self._send_recent(changes.cut, run)
            return changes.entry_id
        if buckets:
            self._send(self._answer(QueryScope(frozenset(buckets), changed_keys(view, self.feed.keys, buckets))))
        self.journal.positions.put(self.name, FollowerPosition(changes.cut, 0.0, known.run))
        return changes.entry_id

    def _send_recent(self, cut: Cut, run: int) -> None:
        """Send all buckets of the declared time, and only then record the position."""
        step_s = self.feed.view.bucket.seconds
        now = int(time.time())
        first = now - self.feed.back_s
        buckets = range(first - first % step_s, now + step_s, step_s)
        for start in range(0, len(buckets), BUCKETS_PER_QUERY):
            self._send(self._answer(QueryScope(frozenset(buckets[start : start + BUCKETS_PER_QUERY]), None)))
        self.journal.positions.put(self.name, FollowerPosition(cut, 0.0, run))

    def _answer(self, scope: QueryScope) -> Result:
        try:
            view = self.engine.served_view(self.feed.view.name)
            query = build_query(view, self.feed.keys, view.bucket.seconds, scope, list(view.answers))
            answer = self.engine.execute(query)
        except ServingError as error:
            raise AnswersIncomplete(error.detail) from None
        if answer.meta.degraded:
            raise AnswersIncomplete(answer.meta.why or "the answer is not complete")
        return answer

    def _send(self, answer: Result) -> None:
        self.sent += self.topic.send(self._records(answer))

    def _records(self, answer: Result) -> Iterator[OutputRecord]:
        cut = cut_to_json(answer.meta.cut)
        for row in answer.rows:
            key = {"bucket": iso(row.period.start), **named(self.feed.keys, row.key)}
            value = {
                "view": answer.meta.view,
                **key,
                "answers": row.answers,
                "cut": cut,
                "run": answer.meta.batch.run,
            }
            yield OutputRecord(_json(key), _json(value), self.feed.name)


def _json(value: Any) -> bytes:
    return orjson.dumps(value, default=_json_default)


def _json_default(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else str(value)
