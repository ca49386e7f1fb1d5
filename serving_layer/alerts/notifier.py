"""The notifier: who is to be notified of an episode that changed state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from serving_layer.alerts.episodes import Episode, EpisodeState
from serving_layer.alerts.journal import Journal, Transitions
from serving_layer.alerts.notifications import Notification, notification_body, notifications_for
from views.declarations import Declarations


@dataclass
class Notifier:
    """Knows the declared alerts, the configured webhooks and the mutes."""

    declarations: Declarations
    journal: Journal
    webhooks: tuple[str, ...] = ()

    def transitions(self, episodes: Iterable[Episode]) -> Transitions:
        """The transitions of these episodes, and the notifications for every target."""
        mutes = self.journal.mutes.active()
        bodies: list[tuple[Episode, str]] = []
        notifications: list[Notification] = []
        for episode in episodes:
            # A webhook that was notified of a firing is notified of its end, whatever was muted since; no other is.
            then = self.journal.transitions.was_muted(episode.id) if episode.state is EpisodeState.RESOLVED else None
            is_muted = episode.alert in mutes if then is None else then
            body = notification_body(episode, is_muted=is_muted)
            bodies.append((episode, body))
            notifications += notifications_for(episode, body, self._webhooks_of(episode.alert), is_muted=is_muted)
        return Transitions(tuple(bodies), tuple(notifications))

    def _webhooks_of(self, name: str) -> tuple[str, ...]:
        alert = self.declarations.alerts.get(name)
        chosen = alert.webhooks if alert is not None else None
        return self.webhooks if chosen is None else tuple(each for each in self.webhooks if each in chosen)
