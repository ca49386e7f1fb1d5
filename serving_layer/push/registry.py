"""The registry of channels and their subscribers: who listens to what, and how many may."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar

import structlog
from prometheus_client import Gauge

from infra.rest.problems import Problem
from serving_layer.push.mailbox import Mailbox, Message, Policy

RETRY_AFTER_S = 10

log = structlog.get_logger()


class Channel(ABC):
    """Reads a source once for all its subscribers, for as long as there are any."""

    policy: ClassVar[Policy]

    def __init__(self) -> None:
        self.mailboxes: set[Mailbox] = set()

    @abstractmethod
    async def follow(self) -> None:
        """Read the source and publish what is new, until cancelled."""

    def welcome(self, mailbox: Mailbox) -> None:  # noqa: B027  most channels have nothing to say at once
        """Prepare the mailbox of a new subscriber."""

    def publish(self, message: Message) -> None:
        """Put a message into the mailbox of every subscriber that has caught up."""
        for mailbox in self.mailboxes:
            if mailbox.resume_after is None:
                mailbox.put(message)


@dataclass(frozen=True)
class Subscription:
    """What one connection follows."""

    key: Hashable
    """Subscriptions with equal keys share a channel."""
    open_channel: Callable[[], Channel]
    check_access: Callable[[], Callable[[str], bool]]
    """Checks the connection's key again and says which views and watches it may see; raises if it is not valid."""
    waits_for_first: bool = False
    """Whether the response starts with the first message, so that a problem in it can be the whole response."""


class Registry:
    """All live connections of this process, whatever they follow. Used by one event loop."""

    def __init__(self, max_subscribers: int, gauge: Gauge) -> None:
        self.channels: dict[Hashable, Channel] = {}
        self.is_closing = False
        self._max_subscribers, self._gauge = max_subscribers, gauge
        self._tasks: dict[Channel, asyncio.Task[None]] = {}

    @property
    def subscribers(self) -> int:
        """The number of live connections."""
        return sum(len(channel.mailboxes) for channel in self.channels.values())

    @asynccontextmanager
    async def subscribe(self, subscription: Subscription, resume_after: str | None) -> AsyncIterator[Mailbox]:
        """Open a mailbox for the duration of the block. Problem 429 if there are too many, 503 while stopping."""
        channel = self._channel(subscription)
        mailbox = Mailbox(channel.policy, resume_after)
        channel.welcome(mailbox)
        channel.mailboxes.add(mailbox)
        self._gauge.inc()
        try:
            yield mailbox
        finally:
            self._gauge.dec()
            channel.mailboxes.discard(mailbox)
            if not channel.mailboxes:
                self._drop(subscription.key, channel)

    def close(self) -> None:
        """End every connection and accept no new one."""
        self.is_closing = True
        for key, channel in list(self.channels.items()):
            for mailbox in channel.mailboxes:
                mailbox.close()
            self._drop(key, channel)

    def _channel(self, subscription: Subscription) -> Channel:
        if self.is_closing:
            raise Problem(503, "stopping", "The serving layer is stopping. Reconnect in a moment.", retry_after_s=1)
        if self.subscribers >= self._max_subscribers:
            raise too_many_live(f"{self._max_subscribers} live connections", "serving_live_subscribers")
        if subscription.key not in self.channels:
            channel = self.channels[subscription.key] = subscription.open_channel()
            task = self._tasks[channel] = asyncio.create_task(channel.follow())
            task.add_done_callback(lambda ended: self._on_end(subscription.key, channel, ended))
        return self.channels[subscription.key]

    def _on_end(self, key: Hashable, channel: Channel, task: asyncio.Task[None]) -> None:
        """End the connections of a channel that failed, so that their clients reconnect: it would never send again."""
        if not task.cancelled():
            log.error("channel_failed", channel=str(key), error=repr(task.exception()))
            for mailbox in channel.mailboxes:
                mailbox.close()
            self._drop(key, channel)

    def _drop(self, key: Hashable, channel: Channel) -> None:
        if self.channels.get(key) is channel:
            del self.channels[key]
        task = self._tasks.pop(channel, None)
        if task is not None:
            task.cancel()


def too_many_live(limit: str, setting: str) -> Problem:
    """The problem 429 of a connection beyond a limit."""
    return Problem(
        429,
        "too-many-live",
        f"The serving layer already has {limit}, the maximum ({setting}). Try again later, or poll instead.",
        retry_after_s=RETRY_AFTER_S,
    )
