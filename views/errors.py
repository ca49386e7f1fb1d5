"""What can be wrong with a declaration: each message names the declaration, the problem and a fix."""

from __future__ import annotations


class DeclarationError(Exception):
    """Base of everything that is refused when it is declared."""

    exit_code = 2


class SourceError(DeclarationError):
    """A source was declared in a way that cannot work."""


class ExpressionError(DeclarationError):
    """An expression cannot be computed; the message says why, and what to write. The declaration adds where."""


class ViewError(DeclarationError):
    """A view was declared in a way that cannot work."""


class AlertError(DeclarationError):
    """An alert, a watch or a feed was declared in a way that cannot work."""


class StateError(Exception):
    """Bytes that are not the state they are taken for: damaged, or written by a newer Tidemark."""

    exit_code = 1


class InvalidEvent(Exception):
    """Bytes that are no event of a source. `where` is a path such as `properties.ms` or `line 3`; "" is the whole."""

    exit_code = 1

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}" if where else reason)
        self.where = where
        self.reason = reason
