"""Errors of the master dataset. Each text says what was asked, what was found and what to do."""

from __future__ import annotations


class MasterDatasetError(Exception):
    """Base of this package's errors. The command line prints the text and exits with `exit_code`."""

    exit_code = 1
    is_temporary = False
    """Whether another attempt may succeed without anybody's help."""


class InvalidEvent(MasterDatasetError):
    """Bytes that are no event of a source. `where` is a path such as `properties.ms` or `line 3`; "" is the whole."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}" if where else reason)
        self.where = where
        self.reason = reason
