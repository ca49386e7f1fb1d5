"""What can go wrong in the speed layer: each text says what was asked, what was found and what to do."""

from __future__ import annotations


class SpeedError(Exception):
    """Base of this package's errors. The command line prints the text and exits with `exit_code`."""

    exit_code = 1


class Fenced(SpeedError):
    """Another writer owns the speed views of the source now: this one must not go on."""

    exit_code = 75


class SparkEnded(SpeedError):
    """The JVM under this process is gone: only a new process has another."""
