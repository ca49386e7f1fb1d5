"""Threads beside an event loop: bounded, and counted for as long as they work."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from infra.rest.problems import Problem
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


def test_no_more_threads_are_started_than_are_needed_or_allowed() -> None:
    async def work() -> tuple[set[int], set[int]]:
        threads = Threads("one", 3)
        one_by_one = {await threads.run(threading.get_ident) for _ in range(5)}
        together = threading.Barrier(3)

        def meet() -> int:
            together.wait(10)
            return threading.get_ident()

        return one_by_one, {*await asyncio.gather(*(threads.run(meet) for _ in range(6)))}

    one_by_one, together = asyncio.run(work())
    assert len(one_by_one) == 1
    assert len(together) == 3


def test_what_fails_in_a_thread_fails_for_its_asker_and_the_thread_goes_on() -> None:
    async def work() -> tuple[str, int]:
        threads = Threads("one", 1)
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0)
        return await threads.run(lambda: "again"), threads.busy

    assert asyncio.run(work()) == ("again", 0)


def test_work_that_nobody_waits_for_any_more_is_not_begun() -> None:
    async def work() -> list[str]:
        threads, may_end, done = Threads("one", 1), threading.Event(), list[str]()
        first = asyncio.create_task(threads.run(may_end.wait, 10))
        await asyncio.sleep(0)
        second = asyncio.create_task(threads.run(done.append, "second"))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        may_end.set()
        await first
        await threads.run(done.append, "third")
        assert threads.busy == 0
        return done

    assert asyncio.run(work()) == ["third"]


def test_variables_of_the_asker_are_seen_in_the_thread() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="nothing")

    async def work() -> str:
        variable.set("something")
        return await Threads("one", 1).run(variable.get)

    assert asyncio.run(work()) == "something"


def test_closed_threads_end() -> None:
    async def work() -> threading.Thread:
        threads = Threads("one", 2)
        thread = await threads.run(threading.current_thread)
        threads.close()
        return thread

    thread = asyncio.run(work())
    thread.join(10)
    assert not thread.is_alive()
