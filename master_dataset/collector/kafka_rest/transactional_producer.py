"""One Kafka transaction after another, through one producer. Every method waits for Kafka: call it in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from infra.rest.problems import Problem
from master_dataset.collector.producer import UNANSWERED, Ack, Outcome, Refusal
from master_dataset.kafka.record import KafkaRecord
from master_dataset.kafka.topics import PARTITIONER

MARGIN_S = 30.0
"""How much longer than ours Kafka's own time limit is: it ends the transactions of a collector that died."""
GRACE_S = 2.0


class State(StrEnum):
    """What became of a transaction."""

    OPEN = "open"
    FAILED = "failed"  # it can only be aborted
    COMMITTING = "committing"  # Kafka did not say yet; it can only be committed
    COMMITTED = "committed"
    ABORTED = "aborted"
    TIMED_OUT = "timed out"
    REPLACED = "replaced"  # aborted, because its client began another one
    UNKNOWN = "unknown"  # Kafka ended it while it was being committed


ENDED = (State.COMMITTED, State.ABORTED, State.TIMED_OUT, State.REPLACED, State.UNKNOWN)


class TransactionalProducer:
    """A producer with a transactional id. Kafka lets no older producer of the same id go on, and ends what it began."""

    def __init__(self, config: dict[str, Any], transactional_id: str, max_s: float, ack_timeout_s: float) -> None:
        self.transactional_id = transactional_id
        self.is_usable = True
        self._timeout_s = ack_timeout_s
        self._producer = Producer(
            {
                **config,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": int((max_s + MARGIN_S) * 1000),
                "message.timeout.ms": int(ack_timeout_s * 1000),
                "partitioner": PARTITIONER,
                "linger.ms": 0.5,
                "message.max.bytes": 110_000_000,  # the collector's limit and the broker decide, with better texts
                "topic.metadata.propagation.max.ms": 3000,
            }
        )
        with self._as_problems("The transaction could not be begun"):
            self._producer.init_transactions(ack_timeout_s)

    def begin(self) -> None:
        """Begin a transaction."""
        with self._as_problems("The transaction could not be begun"):
            self._producer.begin_transaction()

    def send(self, records: Sequence[KafkaRecord]) -> list[Outcome]:
        """Send records, and wait for the outcome of each one."""
        outcomes: list[Outcome] = [UNANSWERED] * len(records)
        for index, record in enumerate(records):
            try:
                self._producer.produce(
                    record.topic,
                    record.value,
                    record.key,
                    record.partition,
                    on_delivery=partial(_note, outcomes, index),
                    timestamp=record.timestamp_ms,
                    headers=list(record.headers),
                )
            except (KafkaException, BufferError) as error:
                reason = KafkaError(KafkaError._QUEUE_FULL) if isinstance(error, BufferError) else error.args[0]
                outcomes[index] = Refusal(reason.code(), reason.str())
        self._producer.flush(self._timeout_s + GRACE_S)
        return outcomes

    def send_offsets(self, locations: list[TopicPartition], group_metadata: Any) -> None:
        """Make the offsets of a consumer group part of the transaction."""
        with self._as_problems("The offsets could not be added to the transaction"):
            self._until_certain(
                lambda: self._producer.send_offsets_to_transaction(locations, group_metadata, self._timeout_s)
            )

    def commit(self) -> None:
        """Commit. The problem 503 says that Kafka did not reply: it is to be called again, until it is certain."""
        with self._as_problems("The transaction could not be committed"):
            self._producer.commit_transaction(self._timeout_s)

    def abort(self) -> None:
        """Abort."""
        with self._as_problems("The transaction could not be aborted"):
            self._until_certain(lambda: self._producer.abort_transaction(self._timeout_s))

    def _until_certain(self, call: Callable[[], None]) -> None:
        """Once more where the first call met a passing error."""
        try:
            call()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            call()

    @contextmanager
    def _as_problems(self, what: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if reason.fatal():
                self.is_usable = False
                raise Problem(
                    409,
                    "transaction-fenced",
                    f"{what}: {reason.str()}. Another producer with the same transactional id took over, or Kafka has "
                    "ended the transaction. Begin another one.",
                ) from None
            if reason.txn_requires_abort():
                raise Problem(
                    409, "transaction-failed", f"{what}: {reason.str()}. Abort it and begin another one."
                ) from None
            raise Problem(
                503, "outcome-unknown", f"{what} yet: {reason.str()}. Send the request again.", retry_after_s=1
            ) from None


def _note(outcomes: list[Outcome], index: int, error: KafkaError | None, message: Message) -> None:
    if error is not None:
        outcomes[index] = Refusal(error.code(), error.str())
        return
    outcomes[index] = Ack(int(message.partition() or 0), message.offset(), message.timestamp()[1])
