"""Logs that are pushed: transitions of alerts in the journal, matches of watches in their Redis streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hand_off.change_log import entries_of
from infra.clients.redis import async_redis_client
from infra.settings import Settings
from infra.stack.addresses import addresses
from serving_layer.alerts.journal import Journal
from serving_layer.alerts.watches import redis_names
from serving_layer.push.log_channel import parse_id
from serving_layer.push.mailbox import MAX_UNREAD, Message
from views.watch import Watch

POLL_S = 0.05
"""Between two reads of the journal while anyone listens. One read takes some microseconds."""
BLOCK_MS = 500
"""Redis waits this long for the next match. A client that reconnects meanwhile waits too."""
READ_COUNT = 500
LOWEST_ID = "0-0"


class TransitionLog:
    """The transitions of all alerts. `journal` returns None before the alert process has first run."""

    def __init__(self, journal: Callable[[], Journal | None]) -> None:
        self._journal = journal

    async def newest_id(self) -> str:
        """The number of the newest transition."""
        journal = self._journal()
        return "0" if journal is None else str(await asyncio.to_thread(journal.transitions.newest))

    async def read_after(self, id_: str) -> list[Message]:
        """Transitions after a number, read after a short pause."""
        await asyncio.sleep(POLL_S)
        return await self._read(int(id_), READ_COUNT)

    async def read_between(self, after: str, until: str) -> tuple[list[Message], int]:
        """Numbers have no gaps: what is missing was pruned, or is more than a mailbox holds."""
        found = await self._read(max(int(after), int(until) - MAX_UNREAD), MAX_UNREAD)
        messages = [message for message in found if int(message.id) <= int(until)]
        return messages, int(until) - int(after) - len(messages)

    async def close(self) -> None:
        """Leave the journal open: other requests read it too."""

    async def _read(self, after: int, limit: int) -> list[Message]:
        journal = self._journal()
        if journal is None:
            return []
        transitions = await asyncio.to_thread(journal.transitions.after, after, limit)
        return [Message("alert", body, str(seq), about=view) for seq, view, body in transitions]


class MatchLog:
    """The matches of one watch."""

    def __init__(self, settings: Settings, watch: Watch) -> None:
        self._client = async_redis_client(settings, addresses(settings).redis)
        self._watch, self._stream = watch.name, redis_names(watch.source.name)[1] + watch.name

    async def newest_id(self) -> str:
        """The id of the newest entry of the stream."""
        entries: Any = await self._client.xrevrange(self._stream, count=1)
        return entries[0][0].decode() if entries else LOWEST_ID

    async def read_after(self, id_: str) -> list[Message]:
        """Matches after an id, waited for."""
        reply: Any = await self._client.xread({self._stream: id_}, count=READ_COUNT, block=BLOCK_MS)
        return self._messages(entries_of(reply))

    async def read_between(self, after: str, until: str) -> tuple[list[Message], int]:
        """The stream retains the newest. If its oldest entry is later than `after`, at least one is missing."""
        oldest: Any = await self._client.xrange(self._stream, count=1)
        entries: Any = await self._client.xrange(self._stream, min=f"({after}", max=until)
        first = parse_id(oldest[0][0].decode()) if oldest else None
        is_complete = first is not None and first <= (parse_id(after) or first)
        return self._messages(entries), 0 if is_complete or after == LOWEST_ID else 1

    async def close(self) -> None:
        """Close the connection to Redis."""
        await self._client.aclose()

    def _messages(self, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> list[Message]:
        return [Message("match", fields[b"e"].decode(), id_.decode(), about=self._watch) for id_, fields in entries]
