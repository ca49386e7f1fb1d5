"""Send records to Kafka and report the outcome of each one.

librdkafka sends in threads of its own. The event loop polls it for acknowledgements every millisecond while some are
missing. A thread that waits for them would compete with the loop for the interpreter, at a cost for each event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from master_dataset.kafka.record import KafkaRecord
from master_dataset.kafka.topics import PARTITIONER

Acks = Literal["0", "1", "all"]
PUMP_EVERY_S = 0.001
IDLE_PUMP_EVERY_S = 1.0
GRACE_S = 2.0
"""How much longer than librdkafka itself we wait for its verdict."""
METADATA_TIMEOUT_S = 5.0

log = structlog.get_logger()


class Ack(NamedTuple):
    """The location of a record. The offset is None with acks=0, where no broker reports it."""

    partition: int
    offset: int | None
    timestamp_ms: int


class Refusal(NamedTuple):
    """Why a record is not, or may not be, in Kafka. `of_our_clock`: Kafka refused a timestamp of our own clock."""

    code: int
    text: str
    of_our_clock: bool = False


Outcome = Ack | Refusal

OF_TIME = (KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD)
"""Kafka's codes for a record whose timestamp is too far from its own clock; the second one for a whole batch."""
CLOCKS = "the clock of the collector is too far from Kafka's; see that both are right"

UNANSWERED = Refusal(KafkaError._TIMED_OUT, "no acknowledgement in time")


class _Delivery:
    """The outcomes of one batch, collected as they arrive."""

    __slots__ = ("done", "missing", "outcomes", "refusals")

    def __init__(self, size: int, done: asyncio.Future[None]) -> None:
        self.outcomes: list[Outcome] = [UNANSWERED] * size
        self.missing = size
        self.refusals = 0
        self.done = done

    def acknowledge(self, index: int, error: KafkaError | None, message: Message) -> None:
        """Librdkafka's report of one record."""
        if error is not None:
            self.refuse(index, error)
            return
        offset = message.offset()
        location = (message.partition(), offset if offset is not None and offset >= 0 else None, message.timestamp()[1])
        self.outcomes[index] = tuple.__new__(Ack, location)  # as Ack(*location), in a third of the time
        self.missing -= 1
        if not self.missing:
            self.end()

    def refuse(self, index: int, error: KafkaError) -> None:
        """Note that this record was not stored."""
        self.outcomes[index] = Refusal(error.code(), error.str())
        self.refusals += 1
        self.missing -= 1
        if not self.missing:
            self.end()

    def end(self) -> None:
        """Wake whoever waits for the outcomes."""
        if not self.done.done():
            self.done.set_result(None)

    def refused_with(self, *codes: int) -> list[int]:
        """The indexes of the records that were refused with one of these codes."""
        if not self.refusals:
            return []
        found = enumerate(self.outcomes)
        return [index for index, outcome in found if isinstance(outcome, Refusal) and outcome.code in codes]


Produce = Callable[[Producer, _Delivery, Sequence[int]], None]
"""Hands the records with these indexes to librdkafka; the first of them is the delivery's record 0, and so on."""


def _reason(error: KafkaException | BufferError) -> KafkaError:
    if isinstance(error, BufferError):
        return KafkaError(KafkaError._QUEUE_FULL)
    reason: KafkaError = error.args[0]
    return reason


def _refused_alone(error: KafkaError) -> KafkaError:
    """The error of one record of a batch, with the text that `produce` gives it."""
    if error.code() == KafkaError._QUEUE_FULL:
        return KafkaError(KafkaError._QUEUE_FULL)
    return KafkaError(error.code(), error.str().replace("Message failed:", "Unable to produce message:", 1))


class AckedProducer:
    """Sends batches and waits until each record is acknowledged or given up. For one event loop."""

    def __init__(self, config: dict[str, Any], ack_timeout_s: float, buffer_bytes: int) -> None:
        self._config = config
        self._ack_timeout_s = ack_timeout_s
        self._buffer_kb = max(1, buffer_bytes // 1000)
        self._producers: dict[Acks, Producer] = {}
        self._retired: list[Producer] = []
        self._pending = 0
        self._pump_handle: asyncio.TimerHandle | None = None
        self._pumps_fast = False

    async def send(self, records: Sequence[KafkaRecord], acks: Acks = "all") -> list[Outcome]:
        """One outcome per record, in order."""

        def produce(producer: Producer, delivery: _Delivery, only: Sequence[int]) -> None:
            for position, index in enumerate(only):
                record = records[index]
                try:
                    producer.produce(
                        record.topic,
                        record.value,
                        record.key,
                        record.partition,
                        on_delivery=partial(delivery.acknowledge, position),
                        timestamp=record.timestamp_ms,
                        headers=list(record.headers),
                    )
                except (KafkaException, BufferError) as error:
                    delivery.refuse(position, _reason(error))

        return await self._send(produce, len(records), acks, lambda index: not records[index].timestamp_ms)

    async def send_values(self, topic: str, pairs: Sequence[tuple[bytes, bytes, str]], acks: Acks) -> list[Outcome]:
        """The same for keys and values (the third member is ignored) of one topic: the hot path."""

        def produce(producer: Producer, delivery: _Delivery, only: Sequence[int]) -> None:
            messages: list[dict[str, Any]] = [
                {"key": key, "value": value, "callback": partial(delivery.acknowledge, position)}
                for position, (key, value, _) in enumerate(map(pairs.__getitem__, only))
            ]
            try:
                if producer.produce_batch(topic, messages) == len(messages):
                    return
            except (KafkaException, BufferError) as error:  # before the first was queued
                for position in range(len(only)):
                    delivery.refuse(position, _reason(error))
                return
            for position, message in enumerate(messages):
                if "_error" in message:  # of those that were not queued
                    delivery.refuse(position, _refused_alone(message["_error"]))

        return await self._send(produce, len(pairs), acks, lambda _index: True)

    async def _send(
        self, produce: Produce, size: int, acks: Acks, has_our_time: Callable[[int], bool]
    ) -> list[Outcome]:
        if not size:
            return []
        delivery = await self._deliver(produce, range(size), acks)
        if not delivery.refusals:
            return delivery.outcomes
        # A topic or partition that is newer than what librdkafka knows was refused before anything was sent.
        if stale := delivery.refused_with(KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC):
            with suppress(KafkaException):
                await asyncio.to_thread(self._producer(acks).list_topics, timeout=METADATA_TIMEOUT_S)
            again = await self._deliver(produce, stale, acks)
            for index, outcome in zip(stale, again.outcomes, strict=True):
                delivery.outcomes[index] = outcome
        await self._blame_our_clock(produce, delivery, acks, has_our_time)
        return delivery.outcomes

    async def _blame_our_clock(
        self, produce: Produce, delivery: _Delivery, acks: Acks, has_our_time: Callable[[int], bool]
    ) -> None:
        """Where Kafka refused a timestamp that our own clock gave, say so.

        Of a batch it says only that something is wrong with one of its records. None is stored then; one record that
        is sent again by itself shows the reason.
        """
        ours = [*filter(has_our_time, delivery.refused_with(*OF_TIME))]
        if unclear := [*filter(has_our_time, delivery.refused_with(KafkaError.INVALID_RECORD))]:
            again = await self._deliver(produce, unclear[:1], acks)
            delivery.outcomes[unclear[0]] = again.outcomes[0]
            if not again.refused_with(KafkaError.INVALID_TIMESTAMP):
                ours = [*filter(has_our_time, delivery.refused_with(KafkaError.INVALID_TIMESTAMP))]
        for index in ours:
            code, text, _ = delivery.outcomes[index]
            delivery.outcomes[index] = Refusal(int(code), f"{text}: {CLOCKS}", of_our_clock=True)

    async def _deliver(self, produce: Produce, only: Sequence[int], acks: Acks) -> _Delivery:
        delivery = _Delivery(len(only), asyncio.get_running_loop().create_future())
        produce(self._producer(acks), delivery, only)
        self._pending += 1
        self._pump_fast()
        deadline = asyncio.get_running_loop().call_later(self._ack_timeout_s + GRACE_S, delivery.end)
        try:
            await delivery.done  # what is UNANSWERED at the deadline says so
        finally:
            deadline.cancel()
            self._pending -= 1
        if delivery.refused_with(KafkaError._FATAL):
            self._retire(acks)
        return delivery

    def start(self) -> None:
        """Connect now, and serve librdkafka's events from now on."""
        self._producer("all")
        self._pump()

    async def close(self) -> None:
        """Wait a little for what is in flight, then close."""
        if self._pump_handle:
            self._pump_handle.cancel()
        for producer in [*self._producers.values(), *self._retired]:
            await asyncio.to_thread(producer.flush, GRACE_S)

    def _producer(self, acks: Acks) -> Producer:
        if acks not in self._producers:
            timeout_ms = int(self._ack_timeout_s * 1000)
            self._producers[acks] = Producer(
                {
                    **self._config,
                    "acks": acks,
                    "enable.idempotence": acks == "all",
                    "partitioner": PARTITIONER,
                    # One request to a broker at a time. What arrives meanwhile goes into the next one, so that a single
                    # event does not wait and many events share one flush of the broker's disk.
                    "linger.ms": 0.5,
                    "max.in.flight.requests.per.connection": 1,
                    "message.timeout.ms": timeout_ms,
                    "socket.timeout.ms": timeout_ms,
                    "message.max.bytes": 110_000_000,  # the collector's limit and the broker decide, with better texts
                    # Beyond the collector's own budget, which counts more than librdkafka does.
                    "queue.buffering.max.kbytes": min(2 * self._buffer_kb + 200_000, 2_000_000_000),
                    "queue.buffering.max.messages": 10_000_000,
                    "topic.metadata.propagation.max.ms": 3000,
                }
            )
        return self._producers[acks]

    def _retire(self, acks: Acks) -> None:
        """Drop a producer that had a fatal error: it sends nothing more, and the next batch gets a new one."""
        log.error("producer_failed", acks=acks)
        if acks in self._producers:
            self._retired.append(self._producers.pop(acks))

    def _pump_fast(self) -> None:
        if not self._pumps_fast:
            if self._pump_handle:
                self._pump_handle.cancel()
            self._pump()

    def _pump(self) -> None:
        for producer in [*self._producers.values(), *self._retired]:
            producer.poll(0)
        if not self._pending:
            self._retired.clear()
        self._pumps_fast = self._pending > 0
        pause_s = PUMP_EVERY_S if self._pumps_fast else IDLE_PUMP_EVERY_S
        self._pump_handle = asyncio.get_running_loop().call_later(pause_s, self._pump)
