"""Errors of both Kafka libraries, translated: what was asked, and what Kafka replied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import kafka.errors
from confluent_kafka import KafkaError, KafkaException

from infra.clients.kafka_admin import error_text
from master_dataset.errors import MasterDatasetError

UNREACHABLE = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)
UNREACHABLE_ADMIN = (
    kafka.errors.NodeNotReadyError,
    kafka.errors.KafkaConnectionError,
    kafka.errors.KafkaTimeoutError,
    kafka.errors.RequestTimedOutError,
)


class TopicError(MasterDatasetError):
    """Kafka refused a request about a topic or a group."""


class KafkaUnreachable(MasterDatasetError):
    """No broker answered in time."""


def translated(error: KafkaException, what: str) -> MasterDatasetError:
    """An error of confluent-kafka, after what failed."""
    reason: KafkaError = error.args[0]
    kind = KafkaUnreachable if reason.code() in UNREACHABLE else TopicError
    return kind(f"{what}: {reason.str()}.")


@contextmanager
def translating(what: str) -> Iterator[None]:
    """Translate errors of kafka-python that the block raises."""
    try:
        yield
    except kafka.errors.KafkaError as error:
        kind = KafkaUnreachable if isinstance(error, UNREACHABLE_ADMIN) else TopicError
        raise kind(f"{what}: {error_text(error)}.") from None
    except OSError as error:  # a certificate that is not there, a port that is no number
        raise KafkaUnreachable(f"{what}: {error}.") from None


def refuse(code: int, text: str | None, what: str) -> None:
    """Raise the error of a reply that has an error code."""
    if code:
        reason = text or kafka.errors.for_code(code).description
        raise TopicError(f"{what}: {reason.rstrip('.')}.")
