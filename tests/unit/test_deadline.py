"""The deadline of a run: it fails with a clear message, and a run that does not react ends with its process."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from batch_layer.deadline import deadline
from batch_layer.progress import Report, quiet
from hand_off.errors import BatchError, RunTimedOut
from tests.conftest import wait_until


class Watch:
    """What a deadline did, and when it may."""

    def __init__(self) -> None:
        self.is_cancelled = threading.Event()
        self.ended: list[str] = []

    def __call__(self, limit_s: float, grace_s: float, block: Callable[[Report], None]) -> None:
        cancel = self.is_cancelled.set
        with deadline("web", limit_s, quiet, grace_s=grace_s, cancel=cancel, end=self.ended.append) as report:
            block(report)


def test_run_over_its_deadline_fails_at_its_next_step() -> None:
    watch = Watch()

    def block(report: Report) -> None:
        report("first", 0, 0)
        watch.is_cancelled.wait(30)
        report("second", 0, 0)

    said = r"The run of source 'web' did not end within 0.01 s \(batch_deadline_s\), so it was ended"
    with pytest.raises(RunTimedOut, match=said) as raised:
        watch(0.01, 600, block)
    assert isinstance(raised.value, BatchError)
    assert raised.value.exit_code == 1
    assert not watch.ended


def test_job_that_fails_because_it_was_cancelled_is_a_run_over_its_deadline() -> None:
    watch = Watch()

    def block(_report: Report) -> None:
        watch.is_cancelled.wait(30)
        raise RuntimeError("Job 3 cancelled as part of cancellation of all jobs")

    with pytest.raises(RunTimedOut) as raised:
        watch(0.01, 600, block)
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_run_that_does_not_react_ends_with_its_process() -> None:
    watch = Watch()
    watch(0.01, 0.01, lambda _report: wait_until("the end", lambda: watch.ended))
    assert "did not end within 0.01 s" in watch.ended[0]


def test_progress_that_another_thread_reports_is_not_the_place_to_fail() -> None:
    watch = Watch()
    problems: list[Exception] = []

    def report_beside(report: Report) -> None:
        try:
            report("beside", 1, 2)
        except Exception as error:
            problems.append(error)

    def block(report: Report) -> None:
        watch.is_cancelled.wait(30)
        thread = threading.Thread(target=report_beside, args=(report,))
        thread.start()
        thread.join()

    watch(0.01, 600, block)
    assert problems == []


@pytest.mark.parametrize("limit_s", [0, 600])
def test_run_in_time_keeps_its_own_errors(limit_s: float) -> None:
    def block(_report: Report) -> None:
        raise LookupError("its own")

    with pytest.raises(LookupError, match="its own"):
        Watch()(limit_s, 600, block)
