"""The reply about records: the location of each one, or the reason why it was not stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError

from infra.rest.problems import Problem
from master_dataset.collector.producer import Outcome, Refusal

UNKNOWN = (503, "outcome-unknown")
OUR_CLOCK = (503, "clocks-differ")
STATUS_OF: dict[int, tuple[int, str]] = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: (404, "unknown-topic"),
    KafkaError._UNKNOWN_TOPIC: (404, "unknown-topic"),
    KafkaError._UNKNOWN_PARTITION: (404, "unknown-partition"),
    KafkaError.MSG_SIZE_TOO_LARGE: (413, "event-too-large"),
    KafkaError.RECORD_LIST_TOO_LARGE: (413, "event-too-large"),
    KafkaError.INVALID_RECORD: (422, "refused-by-kafka"),
    KafkaError.INVALID_TIMESTAMP: (422, "refused-by-kafka"),
    KafkaError.INVALID_MSG: (422, "refused-by-kafka"),
    KafkaError._INVALID_ARG: (422, "refused-by-kafka"),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: (502, "refused-by-kafka"),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (502, "refused-by-kafka"),
    KafkaError.POLICY_VIOLATION: (502, "refused-by-kafka"),
    KafkaError._QUEUE_FULL: (429, "buffer-full"),
}
"""Kafka's codes that mean "certainly not stored". With every other code the outcome is unknown."""

RETRY_IS_SAFE = "a retry with the same event id counts once"


def status_of(refusal: Refusal) -> tuple[int, str]:
    """HTTP status and kind of problem. If our own clock is wrong, the client is not to blame."""
    return OUR_CLOCK if refusal.of_our_clock else STATUS_OF.get(refusal.code, UNKNOWN)


def describe(refusal: Refusal) -> dict[str, Any]:
    """One record's refusal as part of an answer."""
    status, kind = status_of(refusal)
    return {"status": status, "type": f"urn:tidemark:problem:{kind}", "detail": refusal.text}


def location(topic: str, outcome: Outcome) -> dict[str, Any]:
    """One record's result: its location, or its error."""
    if isinstance(outcome, Refusal):
        return {"topic": topic, "error": describe(outcome)}
    return {
        "topic": topic,
        "partition": outcome.partition,
        "offset": outcome.offset,
        "timestamp": outcome.timestamp_ms,
    }


def problem_of(outcomes: Sequence[Outcome], results: list[dict[str, Any]]) -> Problem | None:
    """The problem that covers a batch, with the result of each record; None where all were stored.

    An unknown outcome outweighs every other: the client must know that it may be stored. Then what may be sent again.
    """
    refusals = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
    if not refusals:
        return None
    worst = min(refusals, key=lambda refusal: [UNKNOWN, OUR_CLOCK, status_of(refusal)].index(status_of(refusal)))
    status, kind = status_of(worst)
    count = f"{len(refusals)} of {len(outcomes)} records"
    if (status, kind) == UNKNOWN:
        detail = (
            f"Kafka did not acknowledge {count} ({worst.text}). They may be stored or not: the outcome is unknown. "
            f"Send them again; {RETRY_IS_SAFE}."
        )
    else:
        detail = f"Kafka did not take {count}: {worst.text}. Those without an error in `results` are stored."
    retry_after_s = {503: 2, 429: 1}.get(status)
    return Problem(status, kind, detail, retry_after_s=retry_after_s, results=results)
