"""What can go wrong in an aged installation."""

from __future__ import annotations


class WrongAnswer(Exception):
    """An answer differs from the reference interpreter's at the same cut, or is not given."""
