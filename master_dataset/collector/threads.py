"""Threads for work that takes long, each kind apart: look-ups, /ready and administration never wait behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

from infra.problems import Problem

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """At most `most` threads for one kind of work; they are started when they are needed."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._busy = 0
        self._pool = ThreadPoolExecutor(most, thread_name_prefix=name)

    async def run(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """What `work` gives. It waits for its turn while all threads are busy."""
        self._busy += 1
        try:
            asked = partial(copy_context().run, work, *arguments, **named)
            return await asyncio.get_running_loop().run_in_executor(self._pool, asked)
        finally:
            self._busy -= 1

    async def run_now(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """The same, or the problem 429 while all threads are busy: waiting could take as long as the longest poll."""
        if self._busy >= self._most:
            raise Problem(
                429,
                "too-many-requests",
                f"The collector works on {self._most} requests of this kind ({self._name}) already. Try again soon.",
                retry_after_s=1,
            )
        return await self.run(work, *arguments, **named)
