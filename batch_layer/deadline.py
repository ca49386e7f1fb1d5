"""The deadline of a run: it ends itself, first as a failure like any other, then, if that does not help, for good.

What it leaves behind is what `kill -9` would leave: files that no reader looks at, or a run that is published.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil
import structlog

from batch_layer.progress import Report
from hand_off.errors import RunTimedOut

GRACE_S = 60.0
"""After its deadline, for a run to end as a failure: its Spark jobs are cancelled, and its next step is not begun."""
EXIT_CODE = 1

log = structlog.get_logger()


@contextmanager
def deadline(
    source: str,
    limit_s: float,
    report: Report,
    *,
    grace_s: float = GRACE_S,
    cancel: Callable[[], None] | None = None,
    end: Callable[[str], None] | None = None,
) -> Iterator[Report]:
    """Raise RunTimedOut from the block after `limit_s`; 0: never. Gives the report that the block is to use.

    It is raised at the next step that is reported, or by what fails because its Spark job was cancelled. A block that
    does not react ends with its process. The time is that of the monotonic clock: a laptop may sleep meanwhile.
    """
    if not limit_s:
        yield report
        return
    owner, is_done, is_over = threading.get_ident(), threading.Event(), threading.Event()
    error = RunTimedOut(source, limit_s)

    def watch() -> None:
        if is_done.wait(limit_s):
            return
        is_over.set()
        log.error("run_timed_out", source=source, seconds=limit_s)
        # In a thread: a JVM that hangs would not answer.
        threading.Thread(target=cancel or cancel_jobs, name="cancel", daemon=True).start()
        if not is_done.wait(grace_s):
            (end or end_process)(str(error))

    def checked(stage: str, done: int, total: int) -> None:
        if is_over.is_set() and threading.get_ident() == owner:
            raise error
        report(stage, done, total)

    threading.Thread(target=watch, name="deadline", daemon=True).start()
    try:
        yield checked
    except RunTimedOut:
        raise
    except Exception as problem:
        if is_over.is_set():
            raise error from problem
        raise
    finally:
        is_done.set()


def cancel_jobs() -> None:
    """Cancel the jobs of the session of this process."""
    from pyspark import SparkContext

    with suppress(Exception):  # whatever state Spark is in, the grace ends
        if (context := SparkContext._active_spark_context) is not None:
            context.cancelAllJobs()


def end_process(reason: str) -> None:
    """End this process and all below it, such as Spark's JVM, at once."""
    with suppress(OSError, ValueError):  # nobody reads it any more
        sys.stderr.write(f"tidemark: {reason}\n")
        sys.stderr.flush()
    kill_below(os.getpid())
    os._exit(EXIT_CODE)


def kill_below(pid: int) -> None:
    """Kill every process that stems from this one."""
    with suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                process.kill()
