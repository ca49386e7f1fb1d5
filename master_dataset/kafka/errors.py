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

    def __init__(self, text: str, *, is_temporary: bool = False) -> None:
        super().__init__(text)
        self.is_temporary = is_temporary


class KafkaUnreachable(MasterDatasetError):
    """No broker answered in time."""

    is_temporary = True


def translated(error: KafkaException, what: str) -> MasterDatasetError:
    """An error of confluent-kafka, after what failed."""
    reason: KafkaError = error.args[0]
    text = f"{what}: {reason.str()}."
    if reason.code() in UNREACHABLE:
        return KafkaUnreachable(text)
    return TopicError(text, is_temporary=reason.retriable())


@contextmanager
def translating(what: str) -> Iterator[None]:
    """Translate errors of kafka-python that the block raises."""
    try:
        yield
    except kafka.errors.KafkaError as error:
        text = f"{what}: {error_text(error)}."
        if isinstance(error, UNREACHABLE_ADMIN):
            raise KafkaUnreachable(text) from None
        raise TopicError(text, is_temporary=error.retriable) from None
    except OSError as error:  # a certificate that is not there, a port that is no number
        raise KafkaUnreachable(f"{what}: {error}.") from None


def refuse(code: int, text: str | None, what: str) -> None:
    """Raise the error of a reply that has an error code."""
    if code:
        kind = kafka.errors.for_code(code)
        reason = text or kind.description
        raise TopicError(f"{what}: {reason.rstrip('.')}.", is_temporary=kind.retriable)
