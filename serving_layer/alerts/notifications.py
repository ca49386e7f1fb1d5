"""Notifications: the JSON of an episode, and who receives it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from infra.times import iso_utc
from serving_layer.alerts.episodes import Episode, EpisodeState, named

KAFKA = "kafka"
WEBHOOK = "webhook:"
"""Targets of the outbox: Kafka, and `webhook:<name>`."""


class Notification(NamedTuple):
    """A message to one target. `delivery` names it: whoever receives the same name again has it already."""

    target: str
    delivery: str
    key: str
    body: str


def iso(seconds: float | None) -> str | None:
    """A time in JSON; None stays None."""
    return None if seconds is None else iso_utc(seconds)


def episode_json(episode: Episode) -> dict[str, Any]:
    """An episode as a JSON object."""
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


def notification_body(episode: Episode, *, is_muted: bool) -> str:
    """The JSON that every target and subscriber receives."""
    return json.dumps({**episode_json(episode), "muted": is_muted}, ensure_ascii=False)


def notifications_for(episode: Episode, body: str, webhooks: Iterable[str], *, is_muted: bool) -> list[Notification]:
    """Kafka receives every state. Webhooks receive firing and the resolution after it, unless the alert is muted."""
    delivery = f"{episode.id}:{episode.state}"
    key = json.dumps([episode.alert, named(episode.names, episode.key)], ensure_ascii=False, sort_keys=True)
    targets = [KAFKA]
    if not is_muted and episode.state is not EpisodeState.PENDING and episode.fired_at is not None:
        targets += [WEBHOOK + name for name in webhooks]
    return [Notification(target, delivery, key, body) for target in targets]
