"""Errors of the master dataset. Each text says what was asked, what was found and what to do."""

from __future__ import annotations

from views.errors import InvalidEvent

__all__ = ["InvalidEvent", "MasterDatasetError"]


class MasterDatasetError(Exception):
    """Base of this package's errors. The command line prints the text and exits with `exit_code`."""

    exit_code = 1
    is_temporary = False
    """Whether another attempt may succeed without anybody's help."""
