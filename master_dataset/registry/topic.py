"""The topic `_schemas`: read from its beginning into a state, followed, and written by one process at a time.

Whoever writes first becomes the writer. All writers have one transactional id: a new one fences the one before, whose
transaction is aborted, and then reads everything that was committed. So a record is only ever written by who had read
all records before it, whatever became of the former writer; processes that take turns lose time, not schemas.

The state belongs to the event loop. A thread reads the topic and hands over what it read.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from infra.clients.kafka_admin import KafkaAdmin
from infra.threads import Threads
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka.topics import TopicPlan, compare_topics, create_topic, existing_topics
from master_dataset.registry.errors import RegistryError, UnreadableTopic, busy, outcome_unknown
from master_dataset.registry.records import NOOP, Record, UnreadableRecord, decode, encode
from master_dataset.registry.state import State

SCHEMAS_TOPIC = "_schemas"
PLAN = TopicPlan(SCHEMAS_TOPIC, 1, {"cleanup.policy": "compact", "retention.ms": "-1", "retention.bytes": "-1"})
WRITER_ID = "tidemark-schema-registry"
"""The transactional id of all writers; a cluster with access control lists has to allow it."""
TIMEOUT_S = 10.0
REPORT_S = 10.0
"""How long the reports of records are waited for, before their transaction is committed without them."""
TAKEOVER_S = 20.0
"""How long a write that other processes fence is tried again."""
PAUSE_S, MAX_PAUSE_S = 0.05, 2.0
"""Before a write is tried again: twice as long each time, so that one of those who fence each other gets through."""
RETRY_S = 1.0
POLL_S = 1.0
BATCH = 500
MAX_RECORD_BYTES = 1_000_000
"""What Kafka takes by default, less what a batch adds."""
AWAY = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE)
"""A broker that is away: librdkafka connects again by itself."""
FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)

T = TypeVar("T")

log = structlog.get_logger()


class Fenced(MasterDatasetError):
    """Another process became the writer."""


class Decision(NamedTuple):
    """What a request changes: the records to write, and whatever else it comes to."""

    records: list[Record]
    result: Any


class SchemasTopic:
    """The state of the registry, and the only way to change it."""

    def __init__(
        self, config: dict[str, Any], admin: KafkaAdmin, fill: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        self.state = State()
        self.problem: str | None = "The registry has not read its topic yet."
        """Why nothing can be answered; None once the topic was read."""
        self.is_starting = True
        """Whether it is still reading, and nothing is known to be wrong."""
        self._config, self._admin = config, admin
        self._fill = fill or (lambda _config: None)
        """Puts what a restored backup held into a new topic."""
        self._position = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._producer: Producer | None = None
        self._writing = asyncio.Lock()
        self._threads = Threads("write-schemas", 1)
        self._is_closing = threading.Event()

    async def follow(self) -> None:
        """Create the topic if it is missing, and read it until this is cancelled."""
        while True:
            try:
                await asyncio.to_thread(_prepare, self._admin)
                await asyncio.to_thread(self._fill, self._config)
                break
            except MasterDatasetError as error:
                self._report(str(error))
                await asyncio.sleep(RETRY_S)
        loop = asyncio.get_running_loop()
        reader = threading.Thread(target=self._read, args=(loop,), name="read-schemas", daemon=True)
        reader.start()
        try:
            await loop.create_future()
        finally:
            self._is_closing.set()
            self._threads.close()

    def check_ready(self) -> None:
        """Raise the problem 503 unless the topic was read."""
        if self.problem is not None:
            raise busy(f"{self.problem} Try again soon.")

    async def write(self, decide: Callable[[State], Decision]) -> Any:
        """Write what `decide` finds to be written, wait until it was read back, and return the decision's result.

        `decide` is called with the state after all records that were written so far, perhaps more than once.
        """
        async with self._writing:
            pause, deadline = PAUSE_S, time.monotonic() + TAKEOVER_S
            while True:
                self.check_ready()
                try:
                    await self._become_writer()
                    decision = decide(self.state)
                    if decision.records:
                        await self._commit(decision.records)
                except Fenced:
                    self._producer = None
                    if time.monotonic() > deadline:
                        break
                    await asyncio.sleep(random.uniform(0, pause))  # noqa: S311  not a secret
                    pause = min(2 * pause, MAX_PAUSE_S)
                else:
                    return decision.result
        raise RegistryError(50003, "Other processes kept writing to the registry. Nothing was changed; try again.")

    async def _become_writer(self) -> None:
        """Fence the writer before, and read what it wrote."""
        if self._producer is None:
            self._producer = await self._threads.run(_open_producer, self._config)
            await self._commit([NOOP])

    async def _commit(self, records: list[Record]) -> None:
        encoded = [encode(record) for record in records]
        if any(len(key) + len(value or b"") > MAX_RECORD_BYTES for key, value in encoded):
            raise RegistryError(
                42209, f"A schema with its references may take {MAX_RECORD_BYTES} bytes; this has more."
            )
        producer = self._producer
        assert producer is not None  # noqa: S101  _become_writer made it; for the type checker
        try:
            last = await self._threads.run(_send, producer, encoded)
        except BaseException:  # also where nobody waits any more: the next writer settles what became of it
            self._producer = None
            raise
        await self._reach(last)

    async def _reach(self, offset: int) -> None:
        """Wait until the record at this offset was read."""
        if self._position > offset:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((offset, reached))
        try:
            await asyncio.wait_for(reached, TIMEOUT_S)
        except TimeoutError:
            self._producer = None  # the next writer reads everything first
            raise RegistryError(
                50002, f"The record was written to {SCHEMAS_TOPIC}, but not read back in {TIMEOUT_S:g} s. Try again."
            ) from None

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """The reading thread. After an error it begins again, with an empty state that replaces the old one."""
        while not self._is_closing.is_set():
            try:
                self._read_from_beginning(loop)
            except Exception as error:  # whatever it is, a thread that ended would never come back
                reason = error.args[0].str() if isinstance(error, KafkaException) else repr(error)[:500]
                text = f"{SCHEMAS_TOPIC} cannot be read: {reason}."
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._report, text)
                self._is_closing.wait(RETRY_S)

    def _read_from_beginning(self, loop: asyncio.AbstractEventLoop) -> None:
        consumer = open_consumer(self._config)
        try:
            state = State()
            while not self._is_closing.is_set():
                first = consumer.poll(POLL_S)
                if first is not None:
                    self._hand_over(loop, state, [first, *consumer.consume(BATCH, 0)])
        finally:
            consumer.close()

    def _hand_over(self, loop: asyncio.AbstractEventLoop, state: State, messages: list[Message]) -> None:
        """Let the event loop fold what was read, and wait for that: a long topic is not held in memory."""
        records, position, has_ended = [], 0, False
        for message in messages:
            error = message.error()
            if error is None:
                position = (message.offset() or 0) + 1
                if (record := decoded(message)) is not None:
                    records.append(record)
            elif error.code() == KafkaError._PARTITION_EOF:
                position, has_ended = message.offset() or 0, True
            elif error.code() not in AWAY:
                raise KafkaException(error)
        done: Future[None] = Future()

        def fold() -> None:
            try:
                self._fold(state, records, position, has_ended=has_ended)
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(fold)
            while not done.done() and not self._is_closing.is_set():
                wait([done], 1.0)
        if done.done():
            done.result()

    def _fold(self, state: State, records: list[Record], position: int, *, has_ended: bool) -> None:
        for record in records:
            state.apply(record)
        if has_ended and state is not self.state:
            self.state, self.problem, self._position, self.is_starting = state, None, 0, False
            log.info("read_schemas", subjects=len(state.versions), highest_id=state.highest_id)
            for keytype in sorted(state.not_understood):
                log.warning("ignored_records", topic=SCHEMAS_TOPIC, keytype=keytype)
        if state is self.state:
            self._position = max(position, self._position)
            for offset, reached in self._waiting:
                if offset < self._position and not reached.done():
                    reached.set_result(None)
            self._waiting = [each for each in self._waiting if not each[1].done()]

    def _report(self, text: str) -> None:
        if text != self.problem:
            log.warning("registry_not_ready", reason=text)
        self.problem, self.is_starting = text, False


def _prepare(admin: KafkaAdmin) -> None:
    """Create the topic, or check that the one there is keeps every schema."""
    if SCHEMAS_TOPIC not in existing_topics(admin):
        create_topic(admin, PLAN)
        log.info("created_topic", topic=SCHEMAS_TOPIC)
        return
    for difference in compare_topics(admin, [TopicPlan(PLAN.name, 1, {"cleanup.policy": "compact"})]):
        raise UnreadableTopic(f"{difference}: schemas would be lost. Change the topic, then restart the collector.")


def open_consumer(config: dict[str, Any], topic: str = SCHEMAS_TOPIC) -> Consumer:
    """A consumer at the beginning of the topic, which also says where it ends. The caller closes it."""
    consumer = Consumer(
        {
            **config,
            "group.id": WRITER_ID,  # librdkafka wants one; nothing is committed
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    return consumer


def decoded(message: Message) -> Record | None:
    """What a record of the topic says; None, with a warning, for one that cannot be read."""
    try:
        return decode(message.key(), message.value())
    except UnreadableRecord as error:
        log.warning("skipped_record", topic=SCHEMAS_TOPIC, offset=message.offset(), reason=str(error))
        return None


def _open_producer(config: dict[str, Any]) -> Producer:
    """A producer that fences the one before, once the broker settled what that one left."""
    producer = Producer(
        {
            **config,
            "transactional.id": WRITER_ID,
            "transaction.timeout.ms": int(TIMEOUT_S * 1000),
            "linger.ms": 0,
            "message.max.bytes": 2 * MAX_RECORD_BYTES,
        }
    )
    try:
        producer.init_transactions(TIMEOUT_S)
    except KafkaException as error:
        raise _as_ours(error, "Nothing was changed.") from None
    return producer


def _send(producer: Producer, encoded: list[tuple[bytes, bytes | None]]) -> int:
    """Write in one transaction, and return the offset of the last record."""
    offsets: list[int] = []
    failures: list[KafkaError] = []

    def note(error: KafkaError | None, message: Message) -> None:
        offsets.append(message.offset() or 0) if error is None else failures.append(error)

    try:
        producer.begin_transaction()
        for key, value in encoded:
            producer.produce(SCHEMAS_TOPIC, value, key, 0, on_delivery=note)
        deadline = time.monotonic() + REPORT_S
        while len(offsets) + len(failures) < len(encoded) and time.monotonic() < deadline:
            producer.poll(0.01)
        if not failures:
            producer.commit_transaction(TIMEOUT_S)
    except KafkaException as error:
        raise _as_ours(error, "It may have been changed or not; try again.") from None
    if failures:
        raise _as_ours(KafkaException(failures[0]), "It was not changed.")
    if len(offsets) < len(encoded):  # committed, and nobody knows where: the next writer reads what became of it
        raise outcome_unknown(f"Kafka did not say within {REPORT_S:g} s where it put the record.")
    return max(offsets)


def _as_ours(error: KafkaException, so: str) -> MasterDatasetError:
    reason: KafkaError = error.args[0]
    if reason.code() in FENCED:
        return Fenced(reason.str())
    if reason.code() == KafkaError._TIMED_OUT:
        return RegistryError(50002, f"Kafka did not acknowledge the record in {TIMEOUT_S:g} s. {so}")
    return RegistryError(50001, f"Kafka did not take the record: {reason.str()}. {so}")
