"""Threads for work that takes long, each kind apart: what is answered at once never waits behind it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, ParamSpec, TypeVar

from infra.rest.problems import Problem

P = ParamSpec("P")
T = TypeVar("T")


class _Task(NamedTuple):
    """Work, and who waits for it."""

    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    result: asyncio.Future[Any]


class Threads:
    """At most `most` threads for one kind of work, and where a bound is given, at most `waiting` that wait for one.

    They are started when they are needed, and do not keep the process from ending. Used by one event loop. Python's own
    pool does the same and more, for twice what it costs to hand over a query that takes a tenth of a millisecond.
    """

    def __init__(self, name: str, most: int, waiting: int = 0) -> None:
        self._name, self._threads, self._most = name, most, most + waiting
        self._started = 0
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self.busy = 0
        """How much work is being done or waits. Work that nobody waits for any more counts until its thread is free."""

    async def run(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """What `work` gives. It waits for its turn while all threads are busy."""
        loop = asyncio.get_running_loop()
        task = _Task(partial(copy_context().run, work, *arguments, **named), loop, loop.create_future())
        self.busy += 1
        if self._started < min(self.busy, self._threads):
            self._started += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
        self._tasks.put(task)
        found: T = await task.result
        return found

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
        """Let the threads end when the pending work is done."""
        for _ in range(self._started):
            self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            found = failure = None
            if not task.result.cancelled():  # while it waited
                try:
                    found = task.work()
                except BaseException as error:
                    failure = error
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                task.loop.call_soon_threadsafe(self._end, task.result, found, failure)

    def _end(self, result: asyncio.Future[Any], found: Any, failure: BaseException | None) -> None:
        self.busy -= 1
        if result.cancelled():
            return
        if failure is None:
            result.set_result(found)
        else:
            result.set_exception(failure)
