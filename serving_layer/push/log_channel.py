"""A channel over a log: messages with increasing ids that are retained for a while, so that clients can resume."""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from serving_layer.push.mailbox import QUEUE, Mailbox, Message
from serving_layer.push.registry import Channel

MAX_DIGITS = 20
RETRY_S = 1.0

log = structlog.get_logger()


class MessageLog(Protocol):
    """A log to follow. Its ids are whole numbers, or two of them with a hyphen between."""

    async def newest_id(self) -> str:
        """The id of the newest message, or the lowest possible id if the log is empty."""

    async def read_after(self, id_: str) -> list[Message]:
        """Messages after an id, oldest first. Waits a moment for some."""

    async def read_between(self, after: str, until: str) -> tuple[list[Message], int]:
        """The retained messages after one id up to another, and at least how many are no longer retained."""

    async def close(self) -> None:
        """Release its resources: the channel has no more subscribers."""


class LogChannel(Channel):
    """Follows a log. A client that names the last message it has receives what it missed first."""

    policy = QUEUE

    def __init__(self, name: str, source: MessageLog) -> None:
        super().__init__()
        self._name, self._source = name, source
        self._last_id = ""

    def welcome(self, mailbox: Mailbox) -> None:
        """Ignore a last id that is not one of ours."""
        if parse_id(mailbox.resume_after or "") is None:
            mailbox.resume_after = None

    async def follow(self) -> None:
        """Publish new messages, and retry after errors."""
        try:
            while True:
                try:
                    self._last_id = self._last_id or await self._source.newest_id()
                    while True:
                        await self._catch_up()
                        for message in await self._source.read_after(self._last_id):
                            self._last_id = message.id
                            self.publish(message)
                except Exception as error:  # Redis or the disk: it comes back
                    log.warning("push_retrying", channel=self._name, reason=str(error))
                await asyncio.sleep(RETRY_S)
        finally:
            await self._source.close()

    async def _catch_up(self) -> None:
        """Send to resuming subscribers what they missed up to where the channel is; from there all read the same."""
        for mailbox in [each for each in self.mailboxes if each.resume_after is not None]:
            after = mailbox.resume_after or ""
            known, until = parse_id(after), parse_id(self._last_id)
            if known is not None and until is not None and len(known) == len(until) and known < until:
                messages, missed = await self._source.read_between(after, self._last_id)
                mailbox.missed += missed
                for message in messages:
                    mailbox.put(message)
            mailbox.resume_after = None


def parse_id(id_: str) -> tuple[int, ...] | None:
    """`1772323200-3` -> (1772323200, 3): ids compare in this order. None if it is not an id."""
    parts = id_.split("-", 2)
    is_valid = all(part.isascii() and part.isdigit() and len(part) <= MAX_DIGITS for part in parts)
    return tuple(map(int, parts)) if is_valid else None
