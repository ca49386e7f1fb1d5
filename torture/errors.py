"""Errors of the programme itself. What is wrong with the platform is a result, not an error."""

from __future__ import annotations


class TortureError(Exception):
    """Base of this package's errors. The command line prints the text and exits with `exit_code`."""

    exit_code = 1


class NotInTime(TortureError):
    """A condition did not come true within its deadline."""


class BrokenPromise(TortureError):
    """A fault found a broken promise of the platform: that is a result."""
