"""The records of the topic, read by a separate consumer: every answer is judged by them.

Which bytes are at which offset, the broker says; what they mean, the load does, which made them. Nothing of the
platform is in between.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from confluent_kafka import Consumer, KafkaException, TopicPartition

from infra.clients.kafka import librdkafka_config
from master_dataset.cut import Cut
from torture.installation import Installation
from torture.load import PlannedRecord
from torture.poison import Poison
from torture.readings import has_room
from views.in_memory import Event

POLL_S = 0.5
LOOK_EVERY_S = 3.0
HOUR_S = 3600


class Truth:
    """The records of the topic, as far as they were read. Threads share it."""

    def __init__(self, installation: Installation) -> None:
        self._topic = installation.source_topic
        self._id_field = installation.source.id_field
        self._first_version = installation.source
        partitions = installation.source.partitions
        config = librdkafka_config(installation.settings, installation.addresses.kafka)
        self._consumer = Consumer(
            {**config, "group.id": "torture-truth", "enable.auto.commit": False, "auto.offset.reset": "error"}
        )
        self._consumer.assign([TopicPartition(self._topic, number, 0) for number in range(partitions)])
        self._events: dict[str, Event] = {}
        self._poison: dict[bytes | None, Poison] = {}
        self._hours: dict[int, list[Event]] = defaultdict(list)
        self.poison: dict[tuple[int, int], Poison] = {}
        """Poison by location."""
        self.ids: dict[tuple[int, int], str] = {}
        """Event ids by location."""
        self.invalid_at_first: set[tuple[int, int]] = set()
        """Locations of events that only a later version of the source finds valid."""
        self.strange: list[str] = []
        """Records that nobody sent, or that are not where they may be."""
        self.end: dict[int, int] = dict.fromkeys(range(partitions), 0)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._read, name="truth", daemon=True)

    def know(self, record: PlannedRecord) -> None:
        """A record is about to be sent."""
        if record.event is not None:
            self._events.setdefault(record.event_id, record.event)
        elif record.poison is not None:
            self._poison[record.value] = record.poison

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading."""
        self._stopping.set()
        self._thread.join(30)
        self._consumer.close()

    def has(self, cut: Cut) -> bool:
        """Whether everything below a cut was read."""
        return all(self.end.get(partition, 0) >= offset for partition, offset in cut.items())

    def wait(self, cut: Cut, deadline_s: float = 60) -> bool:
        """Until everything below a cut was read; False: not in time."""
        end = time.monotonic() + deadline_s
        while not self.has(cut):
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def events(self, cut: Cut, start_s: float, end_s: float) -> Iterator[Event]:
        """The events below a cut with times in [start, end), duplicates among them."""
        for hour in range(int(start_s // HOUR_S), int(-(-end_s // HOUR_S))):
            for event in tuple(self._hours.get(hour, ())):
                if event.offset < cut.get(event.partition, 0):
                    yield event

    def times(self) -> list[int]:
        """The hours (since 1970) that have events."""
        return sorted(self._hours)

    def _read(self) -> None:
        looked = time.monotonic()
        while not self._stopping.is_set():
            if time.monotonic() - looked > LOOK_EVERY_S:
                self._look_for_partitions()
                looked = time.monotonic()
            for message in self._consumer.consume(500, timeout=POLL_S):
                if message.error() is None:
                    self._take(message.partition() or 0, message.offset() or 0, message.value())

    def _look_for_partitions(self) -> None:
        """Some may be added under load."""
        with suppress(KafkaException):  # it is asked again
            found = self._consumer.list_topics(self._topic, timeout=2).topics[self._topic].partitions
            for number in sorted(found.keys() - self.end.keys()):
                self._consumer.incremental_assign([TopicPartition(self._topic, number, 0)])
                self.end[number] = 0

    def _take(self, partition: int, offset: int, value: bytes | None) -> None:
        location = partition, offset
        if offset != self.end[partition]:
            self.strange.append(f"partition {partition}: offset {offset} follows {self.end[partition] - 1}")
        if value in self._poison:
            self.poison[location] = self._poison[value]
        else:
            known = self._known(value)
            if known is None:
                self.strange.append(f"partition {partition}, offset {offset}: nobody sent {value!r}"[:300])
            else:
                self.ids[location] = known.event_id
                if not has_room(self._first_version, known.fields):
                    self.invalid_at_first.add(location)
                event = replace(known, partition=partition, offset=offset)
                self._hours[int(event.event_time.timestamp() // HOUR_S)].append(event)
        self.end[partition] = offset + 1  # last: who sees it may read what is below

    def _known(self, value: bytes | None) -> Event | None:
        try:
            return self._events.get(json.loads(value or b"")[self._id_field])
        except (ValueError, TypeError, KeyError):
            return None
