"""What is told of an episode, and to whom: its JSON, and the messages of the outbox."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from infra.times import iso_utc
from serving_layer.alerts.episodes import Episode, State, named

KAFKA = "kafka"
WEBHOOK = "webhook:"
"""Targets of the outbox."""

Message = tuple[str, str, str, str]
"""(target, delivery, key, body)."""


def iso(seconds: float | None) -> str | None:
    """A time as JSON has it."""
    return None if seconds is None else iso_utc(seconds)


def described(episode: Episode) -> dict[str, Any]:
    """An episode as JSON has it."""
    return {
        "id": episode.id,
        "alert": episode.alert,
        "view": episode.view,
        "key": named(episode.names, episode.key),
        "state": str(episode.state),
        "from": iso(episode.first),
        "to": iso(episode.last),
        "pending_at": iso(episode.pending_at),
        "fired_at": iso(episode.fired_at),
        "resolved_at": iso(episode.resolved_at),
        "value": dict(episode.value or {}),
    }


def told(episode: Episode, *, is_muted: bool) -> str:
    """The JSON that everybody gets."""
    return json.dumps({**described(episode), "muted": is_muted}, ensure_ascii=False)


def messages(episode: Episode, body: str, webhooks: Iterable[str], *, is_muted: bool) -> list[Message]:
    """Kafka gets every state; webhooks get what fired and what is over of it, unless the alert is muted.

    A delivery is named by the episode and its state: whoever gets one twice can tell.
    """
    delivery = f"{episode.id}:{episode.state}"
    key = json.dumps([episode.alert, named(episode.names, episode.key)], ensure_ascii=False, sort_keys=True)
    targets = [KAFKA]
    if not is_muted and episode.state is not State.PENDING and episode.fired_at is not None:
        targets += [WEBHOOK + name for name in webhooks]
    return [(target, delivery, key, body) for target in targets]
