"""What can go wrong with the programme itself. What goes wrong with the platform is a result, not an error."""

from __future__ import annotations


class TortureError(Exception):
    """Base of this package's errors. The command line prints the text and exits with `exit_code`."""

    exit_code = 1


class NotInTime(TortureError):
    """Something that was waited for did not come about within its deadline."""


class BrokenPromise(TortureError):
    """A fault looked at the platform itself, and found something that must never be: that is a result."""
