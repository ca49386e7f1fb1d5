"""What can go wrong with batch runs: each text says what was asked, what was found and what to do."""

from __future__ import annotations

from master_dataset.cut import Cut


class BatchError(Exception):
    """Base of this package's errors. The command line prints the text and exits with `exit_code`."""

    exit_code = 1


class RunRefused(BatchError):
    """A run that may not be published: the log has a later run, or a cut that this one is not above."""

    def __init__(self, run: int, cut: Cut, last_run: int, last_cut: Cut) -> None:
        super().__init__(
            f"Run {run} at cut {dict(cut)} is not published: the publish log ends with run {last_run} at cut "
            f"{dict(last_cut)}, and neither run numbers nor cuts ever go back. Nothing that readers see has changed; "
            "`tidemark batch run` makes a new run."
        )
        self.run = run
        self.cut = cut
        self.last_run = last_run
        self.last_cut = last_cut


class RunsUnknown(BatchError):
    """Redis does not say which runs the speed views still need."""


class LeaseHeld(BatchError):
    """Another process works on the batch data of this source."""

    exit_code = 75
