"""Where what is pushed is read: transitions of alerts in the journal, matches of watches in their streams in Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from redis import asyncio as redis_asyncio

from hand_off.change_log import entries_of
from infra.settings import Settings
from infra.stack.services import addresses
from serving_layer.alerts.journal import Journal
from serving_layer.alerts.watches import names
from serving_layer.push.channels import MOST_UNREAD, Pushed, place
from views.watch import Watch

POLL_S = 0.05
"""How often the journal is looked at for news, while anybody listens: a look takes some microseconds."""
WAIT_MS = 500
"""Redis is asked so long for the next match; who comes back meanwhile waits for that."""
AT_ONCE = 500
FIRST = "0-0"


class Transitions:
    """What is told of alerts. `journal` gives none before the alert process has run."""

    def __init__(self, journal: Callable[[], Journal | None]) -> None:
        self._journal = journal

    async def newest(self) -> str:
        """Its number."""
        journal = self._journal()
        return "0" if journal is None else str(await asyncio.to_thread(journal.last_transition))

    async def after(self, last: str) -> list[Pushed]:
        """What came since, after a moment."""
        await asyncio.sleep(POLL_S)
        return await self._read(last, AT_ONCE)

    async def kept(self, last: str, until: str) -> tuple[list[Pushed], int]:
        """Numbers have no gaps: what is not there was pruned, or is more than anybody reads."""
        found = await self._read(str(max(int(last), int(until) - MOST_UNREAD)), MOST_UNREAD)
        found = [each for each in found if int(each.id) <= int(until)]
        return found, int(until) - int(last) - len(found)

    async def close(self) -> None:
        """The journal stays open: others read it too."""

    async def _read(self, last: str, most: int) -> list[Pushed]:
        journal = self._journal()
        if journal is None:
            return []
        found = await asyncio.to_thread(journal.transitions, int(last), most)
        return [Pushed("alert", str(seq), body, view) for seq, view, body in found]


class Matches:
    """What a watch matches."""

    def __init__(self, settings: Settings, watch: Watch) -> None:
        password = settings.redis_password
        self._client = redis_asyncio.from_url(
            addresses(settings).redis, password=password.get_secret_value() if password else None
        )
        self._watch, self._stream = watch.name, names(watch.source.name)[1] + watch.name

    async def newest(self) -> str:
        """Its place in the stream."""
        found: Any = await self._client.xrevrange(self._stream, count=1)
        return found[0][0].decode() if found else FIRST

    async def after(self, last: str) -> list[Pushed]:
        """What came since, or comes in a moment."""
        found: Any = await self._client.xread({self._stream: last}, count=AT_ONCE, block=WAIT_MS)
        return self._pushed(entries_of(found))

    async def kept(self, last: str, until: str) -> tuple[list[Pushed], int]:
        """The stream keeps the newest. Where it begins later than `last`, what is missing is at least one."""
        oldest: Any = await self._client.xrange(self._stream, count=1)
        found: Any = await self._client.xrange(self._stream, min=f"({last}", max=until)
        begins = place(oldest[0][0].decode()) if oldest else None
        is_whole = begins is not None and begins <= (place(last) or begins)
        return self._pushed(found), 0 if is_whole or last == FIRST else 1

    async def close(self) -> None:
        """Let go of the connection."""
        await self._client.aclose()

    def _pushed(self, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> list[Pushed]:
        return [Pushed("match", id_.decode(), fields[b"e"].decode(), self._watch) for id_, fields in entries]
