"""Threads for work that takes long, each kind apart: what is answered at once never waits behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

from infra.problems import Problem

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """At most `most` threads for one kind of work, and where a bound is given, at most `waiting` that wait for one.

    They are started when they are needed. Used by one event loop.
    """

    def __init__(self, name: str, most: int, waiting: int = 0) -> None:
        self._name = name
        self._most = most + waiting
        self.busy = 0
        """How much work is being done or waits. Work whose asker went away counts until its thread is free again."""
        self._pool = ThreadPoolExecutor(most, thread_name_prefix=name)

    async def run(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """What `work` gives. It waits for its turn while all threads are busy."""
        loop = asyncio.get_running_loop()

        def ended(_future: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody counts any more
                loop.call_soon_threadsafe(self._count, -1)

        self._count(1)
        doing = self._pool.submit(partial(copy_context().run, work, *arguments, **named))
        doing.add_done_callback(ended)
        return await asyncio.wrap_future(doing)

    async def run_now(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """The same, or the problem 429 where too much is done already: waiting could take as long as the longest."""
        if self.busy >= self._most:
            raise Problem(
                429,
                "too-many-requests",
                f"This server works on {self._most} requests of this kind ({self._name}) already. Try again soon.",
                retry_after_s=1,
            )
        return await self.run(work, *arguments, **named)

    def close(self) -> None:
        """Begin nothing more. What is being done ends in its own time."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _count(self, change: int) -> None:
        self.busy += change
