"""Threads beside an event loop: bounded, and counted for as long as they work."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from infra.problems import Problem
from infra.threads import Threads


def test_more_work_than_threads_is_refused_with_the_time_to_try_again() -> None:
    async def crowd() -> tuple[Any, ...]:
        threads, may_end = Threads("fetch", 2), threading.Event()
        busy = [asyncio.create_task(threads.run_now(may_end.wait, 30)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Problem) as refused:
            await threads.run_now(may_end.wait, 30)
        # What has nothing to do with it does not wait.
        assert await asyncio.to_thread(lambda: "ready") == "ready"
        may_end.set()
        return refused.value, await asyncio.gather(*busy), await threads.run_now(lambda: "again")

    refused, ended, again = asyncio.run(crowd())
    assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
    assert (ended, again) == ([True, True], "again")


def test_work_that_nobody_waits_for_any_more_counts_until_its_thread_is_free() -> None:
    async def give_up() -> tuple[int, int]:
        threads, may_end = Threads("answer", 1), threading.Event()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(threads.run_now(may_end.wait, 30), 0.01)
        still_busy = threads.busy
        may_end.set()
        await threads.run(lambda: None)  # behind it, in the only thread
        await asyncio.sleep(0)
        return still_busy, threads.busy

    assert asyncio.run(give_up()) == (1, 0)
