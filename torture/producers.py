"""The clients that send the load, one straight to Kafka, one through the collector. Both log the outcome."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
from confluent_kafka import KafkaError, KafkaException, Producer

from infra.clients.kafka import librdkafka_config
from torture.fates import Fate, Fates
from torture.installation import Installation
from torture.load import PlannedRecord

REST_BATCH = 10
BULK = 100
"""Records of a bulk that are sent before others have their turn."""
REST_TIMEOUT_S = 20.0
PAUSE_S = 0.05
RETRY_S = 0.5
FLUSH_S = 120.0
CERTAIN = (400, 401, 403, 404, 413, 415, 422, 429, 507)
"""Statuses of the collector after which nothing is stored."""
LATER = (429, 507)
"""Those after which the same events are sent again: a full buffer, a disk that is almost full."""


@dataclass
class Producers:
    """Sends `records` at `rate` a second until it is stopped. A record with an unknown outcome is sent again."""

    installation: Installation
    records: Iterator[PlannedRecord]
    fates: Fates
    known: Callable[[PlannedRecord], None]
    """Called with each record before it is sent."""
    rate: float
    problems: list[str] = field(default_factory=list)
    """Replies that the collector must not give."""
    sent: int = 0
    duplicates: int = 0
    poison: int = 0

    def __post_init__(self) -> None:
        self._again: deque[PlannedRecord] = deque()
        self._rest: deque[PlannedRecord] = deque()
        self._stopping = threading.Event()
        config = librdkafka_config(self.installation.settings, self.installation.addresses.kafka)
        self._config = {**config, "acks": "all", "enable.idempotence": True, "message.timeout.ms": 60_000}
        self._producer = Producer(self._config)
        self._threads = [
            threading.Thread(target=each, name=each.__name__, daemon=True) for each in (self._send_raw, self._send_rest)
        ]

    def start(self) -> None:
        """Start both threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop sending; returns when every outcome is known, as far as it ever will be."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(FLUSH_S)
        end = time.monotonic() + FLUSH_S
        while self._again and time.monotonic() < end:
            self._put(self._again.popleft())
            self._producer.flush(10)
        self._producer.flush(FLUSH_S)

    # ---- raw Kafka ----

    def _send_raw(self) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            self._producer.poll(0)
            self._send_bulk()
            due = max(due, time.monotonic() - 1)  # after a pause the load does not catch up completely
            while due <= time.monotonic() and len(self._rest) < 500:
                due += 1 / max(self.rate, self.installation.rush)
                try:
                    self._next()
                except Exception as error:  # likewise
                    self.problems.append(f"the load failed: {error!r}")
            self._stopping.wait(PAUSE_S)

    def _send_bulk(self) -> None:
        bulk = self.installation.bulk
        for _ in range(min(len(bulk), BULK)):
            self._send(bulk[0])
            bulk.popleft()  # last: where none is left, all of them were sent

    def _next(self) -> None:
        if self._again:
            self._put(self._again.popleft())
        else:
            self._send(next(self.records))

    def _send(self, record: PlannedRecord) -> None:
        self.known(record)
        self.sent += 1
        self.duplicates += record.duplicate is not None
        self.poison += record.poison is not None
        if record.by_rest:
            self._rest.append(record)
        else:
            self._put(record)

    def _put(self, record: PlannedRecord) -> None:
        poison = record.poison
        try:
            self._producer.produce(
                self.installation.source_topic,
                record.value,
                poison.key if poison else record.event_id.encode(),
                record.partition,
                on_delivery=partial(self._delivered, record),
                timestamp=int((time.time() - record.age_s) * 1000),
                headers=list(poison.headers) if poison else None,
            )
        except BufferError:
            self._again.append(record)
        except KafkaException as error:
            self.fates.note(Fate(record.number, record.event_id, "kafka", "refused", reason=str(error)))
            self._again.append(record)

    def _delivered(self, record: PlannedRecord, error: KafkaError | None, message: Any) -> None:
        if error is None:
            location = message.partition(), message.offset()
            self.fates.note(Fate(record.number, record.event_id, "kafka", "acknowledged", *location))
            return
        self.fates.note(Fate(record.number, record.event_id, "kafka", "unknown", reason=str(error)))
        if record.event is not None:
            self._again.append(record)
        if error.fatal():
            self._producer = Producer(self._config)

    # ---- by REST ----

    def _send_rest(self) -> None:
        with self.installation.client("collector", REST_TIMEOUT_S) as client:
            while not self._stopping.is_set() or self._rest:
                batch = [self._rest.popleft() for _ in range(min(len(self._rest), REST_BATCH))]
                if not batch:
                    self._stopping.wait(PAUSE_S)
                    continue
                try:
                    unsure = self._post(client, batch)
                except Exception as error:  # without load the platform would always look right
                    self.problems.append(f"an answer of the collector that nobody can read: {error!r}")
                    unsure = self._all(batch, "unknown", repr(error))
                if self._stopping.is_set():
                    self._again.extend(unsure)
                else:
                    self._rest.extendleft(reversed(unsure))
                if unsure:
                    self._stopping.wait(RETRY_S)

    def _post(self, client: httpx.Client, batch: list[PlannedRecord]) -> list[PlannedRecord]:
        """Send some events; returns those that must be sent again."""
        body = b"[" + b",".join(record.value or b"" for record in batch) + b"]"
        headers = {"content-type": "application/json"}
        try:
            answer = client.post(f"/events/{self.installation.source_name}", content=body, headers=headers)
        except httpx.HTTPError as error:
            return self._all(batch, "unknown", type(error).__name__)
        if answer.status_code == 200:
            locations = answer.json()
            if len(locations) != len(batch):
                self.problems.append(f"the collector returned {len(locations)} locations for {len(batch)} events")
            for record, location in zip(batch, locations, strict=False):
                outcome = Fate(
                    record.number, record.event_id, "rest", "acknowledged", location["partition"], location["offset"]
                )
                self.fates.note(outcome)
            return []
        if answer.headers.get("content-type") != "application/problem+json" or answer.status_code not in (*LATER, 503):
            self.problems.append(f"the collector answered {answer.status_code}: {answer.text[:500]}")
        if answer.status_code in CERTAIN:
            refused = self._all(batch, "refused", str(answer.status_code))
            return refused if answer.status_code in LATER else []
        return self._some(batch, answer)

    def _some(self, batch: list[PlannedRecord], answer: httpx.Response) -> list[PlannedRecord]:
        """Of a batch whose outcome is unknown, some locations may be known."""
        results: list[dict[str, Any]] = answer.json().get("results") or [{} for _ in batch]
        unsure = []
        for record, location in zip(batch, results, strict=True):
            if "offset" in location:
                at = location["partition"], location["offset"]
                self.fates.note(Fate(record.number, record.event_id, "rest", "acknowledged", *at))
            else:
                unsure += self._all([record], "unknown", str(answer.status_code))
        return unsure

    def _all(self, batch: list[PlannedRecord], outcome: Any, reason: str) -> list[PlannedRecord]:
        for record in batch:
            self.fates.note(Fate(record.number, record.event_id, "rest", outcome, reason=reason))
        return batch
