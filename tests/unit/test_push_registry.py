"""The registry of live connections: a channel that fails ends its connections."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, Gauge

from serving_layer.push.mailbox import NEWEST_ONLY, Message
from serving_layer.push.registry import Channel, Registry, Subscription

PATIENCE_S = 60.0


class FailingChannel(Channel):
    """Publishes one message, and then has a defect."""

    policy = NEWEST_ONLY

    async def follow(self) -> None:
        self.publish(Message("answer", "{}"))
        raise ZeroDivisionError


def test_a_channel_that_fails_ends_its_connections_and_the_next_one_starts_again() -> None:
    async def subscribe_twice() -> list[bool]:
        registry = Registry(10, Gauge("live", "Live connections.", registry=CollectorRegistry()))
        subscription = Subscription("key", FailingChannel, lambda: lambda _name: True)
        ended = []
        for _ in range(2):
            async with registry.subscribe(subscription, None) as mailbox:
                async with asyncio.timeout(PATIENCE_S):
                    while not mailbox.is_closed:
                        await mailbox.take(PATIENCE_S)
                ended.append(mailbox.is_closed)
            assert registry.channels == {}
        return ended

    assert asyncio.run(subscribe_twice()) == [True, True]
