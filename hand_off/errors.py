"""What can go wrong in the hand-off, in batch runs and in the speed layer.

Each text says what was asked, what was found and what to do. The command line prints it and exits with `exit_code`.
"""

from __future__ import annotations

from master_dataset.cut import Cut


class BatchError(Exception):
    """Base of what batch runs and readers of batch data raise."""

    exit_code = 1


class RunRefused(BatchError):
    """A run that may not be published: the log has a later run, or a cut that this one is not above."""

    def __init__(self, run: int, cut: Cut, last_run: int, last_cut: Cut) -> None:
        super().__init__(
            f"Run {run} at cut {dict(cut)} is not published: the publish log ends with run {last_run} at cut "
            f"{dict(last_cut)}, and neither run numbers nor cuts ever go back. Readers see what they saw before. "
            "Start a new run: `tidemark batch run`."
        )
        self.run = run
        self.cut = cut
        self.last_run = last_run
        self.last_cut = last_cut


class RunTimedOut(BatchError):
    """A run that reached its deadline."""

    def __init__(self, source: str, limit_s: float) -> None:
        super().__init__(
            f"The run of source {source!r} did not end within {limit_s:g} s (batch_deadline_s), so it was ended. "
            "Readers see the newest published run. Its log shows what it waited for; where runs need longer, raise "
            "TIDEMARK_BATCH_DEADLINE_S."
        )
        self.source = source
        self.limit_s = limit_s


class NothingArchived(BatchError):
    """The master dataset of a source holds nothing yet: there is nothing to compute, and nothing has failed."""


class TablesBehind(BatchError):
    """A run is published, and the Delta tables that other engines read could not be brought to it."""


class RunsUnknown(BatchError):
    """Redis does not say which runs the speed views still need."""


class LeaseHeld(BatchError):
    """Another process works on the batch data of this source."""

    exit_code = 75


class SpeedError(Exception):
    """Base of what the speed layer raises."""

    exit_code = 1


class Fenced(SpeedError):
    """Another writer owns the speed views of the source: this one must stop."""

    exit_code = 75


class SparkEnded(SpeedError):
    """The JVM under this process is gone. Only a new process gets another."""
