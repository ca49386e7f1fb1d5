"""Mailboxes: what a subscriber has not read yet, bounded by a policy."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import NamedTuple

from infra.rest.problems import Problem

MAX_UNREAD = 1_000


class Message(NamedTuple):
    """One message: JSON in `data`."""

    event: str
    data: str
    id: str = ""
    """A client that reconnects sends the last id it received; "" where there is nothing to resume from."""
    about: str = ""
    """The view or watch that the subscriber's key must be allowed to see; "": anyone may read it."""
    problem: Problem | None = None
    """The problem that `data` describes, if it describes one."""

    def as_text(self) -> str:
        """Format for a WebSocket: `{"answer": {...}}`."""
        return f'{{"{self.event}":{self.data}}}'


class Policy(NamedTuple):
    """What a full mailbox does. It always drops its oldest message; it may tell the reader how many it dropped."""

    capacity: int
    reports_missed: bool


NEWEST_ONLY = Policy(1, reports_missed=False)
"""For answers: the next one replaces the last."""
QUEUE = Policy(MAX_UNREAD, reports_missed=True)
"""For alert transitions and matches: each one counts."""


class Mailbox:
    """The unread messages of one subscriber. Used by one event loop."""

    def __init__(self, policy: Policy, resume_after: str | None = None) -> None:
        self.resume_after = resume_after
        """The last message that the client has, until the channel has caught up with it; None: nothing to catch up."""
        self.unread: deque[Message] = deque(maxlen=policy.capacity)
        self.missed = 0
        self.is_closed = False
        self._reports_missed = policy.reports_missed
        self._changed = asyncio.Event()

    def put(self, message: Message) -> None:
        """Add a message; a full mailbox drops its oldest."""
        if self._reports_missed and len(self.unread) == self.unread.maxlen:
            self.missed += 1
        self.unread.append(message)
        self._changed.set()

    def close(self) -> None:
        """End the subscription: the reader wakes up and sees `is_closed`."""
        self.is_closed = True
        self._changed.set()

    async def take(self, timeout_s: float) -> list[Message]:
        """Wait for messages and remove all of them; an empty list after the timeout or once it is closed and empty."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        messages = list(self.unread)
        self.unread.clear()
        if self.missed:
            messages.insert(0, Message("missed", f'{{"count":{self.missed}}}'))
            self.missed = 0
        if not self.is_closed:
            self._changed.clear()
        return messages
