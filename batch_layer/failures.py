"""The failures of a source's runs since its last success, kept in a file of its batch folder.

Every run notes its own failure, whoever started it. A run that was killed cannot: the scheduler notes those that it
started. The next run that succeeds removes the file.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from hand_off.batch_folder import BatchFolder
from hand_off.errors import NothingArchived
from infra.disk import make_folder
from infra.errors import InfraError
from infra.home import Home, read_json, write_json
from infra.settings import Settings
from infra.times import readable_utc

MAX_REASON = 500


@dataclass(frozen=True)
class Failures:
    """How many runs failed in a row, when the first and the last of them did (seconds since 1970), and the reason."""

    count: int
    since: float
    at: float
    reason: str

    def __str__(self) -> str:
        """Like `3 runs in a row failed, since 2026-11-16 03:15:00 UTC. The last one: …`."""
        if self.count == 1:
            return f"the last run failed, at {readable_utc(self.at)}: {self.reason}"
        return f"{self.count} runs in a row failed, since {readable_utc(self.since)}. The last one: {self.reason}"


@contextmanager
def noted(folder: BatchFolder) -> Iterator[None]:
    """Note that the block failed, and forget the failures before it where it does not."""
    try:
        yield
    except NothingArchived:
        raise
    except Exception as error:
        note_failure(folder, reason_of(error), time.time())
        raise
    forget_failures(folder)


def read_failures(folder: BatchFolder) -> Failures | None:
    """The failures since the last success; None where there are none."""
    found = read_json(folder.failures)
    try:
        return Failures(int(found["count"]), float(found["since"]), float(found["at"]), str(found["reason"]))
    except (TypeError, KeyError, ValueError):  # no file, or a damaged one, which the next failure replaces
        return None


def note_failure(folder: BatchFolder, reason: str, at: float) -> Failures:
    """One failure more. Where it cannot be written, as on a full disk, it is only returned."""
    before = read_failures(folder)
    count, since = (0, at) if before is None else (before.count, min(before.since, at))
    found = Failures(count + 1, since, at, reason[:MAX_REASON])
    with suppress(OSError):
        make_folder(folder.root)
        write_json(folder.failures, asdict(found))
    return found


def forget_failures(folder: BatchFolder) -> None:
    """After a success."""
    folder.failures.unlink(missing_ok=True)


def reason_of(error: BaseException) -> str:
    """An error in one line: its own sentence, or for one that nobody foresaw its kind and the first line of its text.

    Errors of the JVM bring pages of stack trace with them.
    """
    if hasattr(error, "exit_code"):
        return str(error)
    thrown = getattr(error, "java_exception", None)
    try:
        text = str(thrown.toString()) if thrown is not None else str(getattr(error, "desc", None) or error)
    except Exception:  # the JVM is gone
        text = str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    kind = "" if thrown is not None else type(error).__name__
    return ": ".join(part for part in (kind, first) if part)[:MAX_REASON]


def run_log(settings: Settings) -> Path:
    """The log of batch runs: Spark's own messages, and the tracebacks of failures that nobody foresaw."""
    return Home(settings.home).log_file("batch")


def log_traceback(settings: Settings, source: str, error: BaseException) -> None:
    """Write a failure that nobody foresaw into the log of batch runs, with all that is known of it."""
    with suppress(OSError, InfraError):  # a full disk: the command still prints the reason
        Home(settings.home).prepare()
        with run_log(settings).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{readable_utc(time.time())} batch run of {source} failed\n")
            file.writelines(traceback.format_exception(error))
