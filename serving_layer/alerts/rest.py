"""Alerts by REST: GET /alerts, /alerts/history, /alerts/live, and GET /watches, /watches/{name}/live."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from redis.exceptions import RedisError
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from infra.clients.redis import redis_client
from infra.rest.responses import json_response, query_pairs
from infra.settings import Settings
from infra.stack.addresses import addresses
from serving_layer.alerts.episodes import Episode, EpisodeState
from serving_layer.alerts.journal import Journal, journal_path, open_journal
from serving_layer.alerts.notifications import episode_json, iso
from serving_layer.alerts.push_sources import MatchLog, TransitionLog
from serving_layer.alerts.watches import WatchState, read_states
from serving_layer.errors import BadParameter
from serving_layer.push.log_channel import LogChannel
from serving_layer.push.registry import Registry, Subscription
from serving_layer.push.routes import push_routes
from serving_layer.query import parameters
from serving_layer.rest.context import Serving
from views.alert import Alert
from views.declarations import Declarations
from views.watch import Watch

DEFAULT_HISTORY, MAX_HISTORY = 50, 1_000


class AlertReader:
    """What the routes read: the journal of the home, once there is one, and the streams of watches in Redis."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.settings: Settings = serving.settings
        self.declarations: Declarations = serving.declarations
        self._journal: Journal | None = None

    def journal(self) -> Journal | None:
        """The journal; None before the alert process has first run."""
        if self._journal is None and journal_path(self.settings).is_file():
            self._journal = open_journal(self.settings)
        return self._journal

    def close(self) -> None:
        """Close the journal."""
        if self._journal is not None:
            self._journal.close()

    # ---- blocking: in a thread ----

    def alerts(self, views: frozenset[str]) -> list[dict[str, Any]]:
        """Every alert on these views, with its open episodes."""
        journal = self.journal()
        mutes = journal.mutes.active() if journal else {}
        by_alert: dict[str, list[Episode]] = {}
        for episode in journal.episodes.all(is_open=True) if journal else ():
            by_alert.setdefault(episode.alert, []).append(episode)
        return [
            _alert(alert, by_alert.get(name, []), mutes.get(name))
            for name, alert in sorted(self.declarations.alerts.items())
            if alert.view.name in views
        ]

    def history(self, views: frozenset[str], limit: int) -> list[dict[str, Any]]:
        """The newest episodes of alerts on these views."""
        journal = self.journal()
        episodes = [episode for episode in journal.episodes.all() if episode.view in views] if journal else []
        return [episode_json(episode) for episode in episodes[:limit]]

    def watches(self, watches: list[Watch]) -> list[dict[str, Any]]:
        """Each watch, and how many events it has matched; null if Redis does not answer."""
        states: dict[str, WatchState | None] = {}
        with redis_client(self.settings, addresses(self.settings).redis, timeout_s=1.0) as client:
            for source in {each.source.name for each in watches}:
                names = [each.name for each in watches if each.source.name == source]
                try:
                    states |= read_states(client, source, names)
                except (RedisError, OSError):
                    states |= dict.fromkeys(names)
        return [_watch(each, states[each.name]) for each in watches]

    # ---- access ----

    async def subscribe_alerts(self, connection: HTTPConnection) -> Subscription:
        """/alerts/live: the transitions of alerts on views that the key may see."""
        check_access = partial(self.serving.access.seeing, connection)
        check_access()
        _check_no_parameters(connection)
        return Subscription("alerts", lambda: LogChannel("alerts", TransitionLog(self.journal)), check_access)

    async def subscribe_watch(self, connection: HTTPConnection) -> Subscription:
        """/watches/{name}/live: the matches of a watch."""
        declared, asked = self.declarations.watches, connection.path_params["name"]
        watch = self.serving.access.watch(connection, declared, asked)
        _check_no_parameters(connection)

        def check_access() -> Callable[[str], bool]:
            self.serving.access.watch(connection, declared, asked)
            return lambda _name: True

        name = f"watch {watch.name}"
        return Subscription(name, lambda: LogChannel(name, MatchLog(self.settings, watch)), check_access)


def _alert(alert: Alert, episodes: list[Episode], muted_until: float | None) -> dict[str, Any]:
    firing = [episode for episode in episodes if episode.state is EpisodeState.FIRING]
    pending = [episode for episode in episodes if episode.state is EpisodeState.PENDING]
    return {
        "name": alert.name,
        "doc": alert.doc,
        "view": alert.view.name,
        "when": alert.when or f"silence {alert.silence}",
        "by": list(alert.keys),
        "over": alert.over or alert.view.grain,
        "for": alert.for_buckets,
        "state": "firing" if firing else "pending" if pending else "ok",
        "muted_until": iso(muted_until),
        "firing": [_open(episode) for episode in firing],
        "pending": [_open(episode) for episode in pending],
    }


def _watch(watch: Watch, state: WatchState | None) -> dict[str, Any]:
    return {
        "name": watch.name,
        "source": watch.source.name,
        "where": (state and state.where) or watch.where,
        "doc": watch.doc,
        "matched": None if state is None else state.matched,
        "refused": state and state.refused,
    }


def _open(episode: Episode) -> dict[str, Any]:
    shown = episode_json(episode)
    since = shown["fired_at"] or shown["pending_at"]
    return {"id": episode.id, "key": shown["key"], "since": since, "value": shown["value"]}


def _check_no_parameters(connection: HTTPConnection) -> None:
    for name, value in query_pairs(connection):
        raise BadParameter(name, value, f"There is no parameter {name[:100]!r} here. Leave it out.")


def alert_routes(reader: AlertReader, registry: Registry) -> list[BaseRoute]:
    """The routes. Live ones serve server-sent events and WebSocket at one path."""
    serving = reader.serving

    async def alerts(request: Request) -> Response:
        views = frozenset(serving.access.views(request))
        _check_no_parameters(request)
        return json_response({"alerts": await serving.run(reader.alerts, views)})

    async def history(request: Request) -> Response:
        views = frozenset(serving.access.views(request))
        limit = DEFAULT_HISTORY
        for name, value in query_pairs(request):
            if name != "limit":
                raise BadParameter(
                    name, value, f"There is no parameter {name[:100]!r} here. There is: limit.", ["limit"]
                )
            limit = parameters.whole_number("limit", value, 1, MAX_HISTORY)
        return json_response({"episodes": await serving.run(reader.history, views, limit)})

    async def watches(request: Request) -> Response:
        seen = list(serving.access.watches(request, reader.declarations.watches).values())
        return json_response({"watches": await serving.run(reader.watches, seen)})

    return [
        Route("/alerts", alerts),
        Route("/alerts/history", history),
        *push_routes(registry, "/alerts/live", reader.subscribe_alerts),
        Route("/watches", watches),
        *push_routes(registry, "/watches/{name}/live", reader.subscribe_watch),
    ]
