"""What can be wrong with a declaration: each text names the declaration, the place and a fix."""

from __future__ import annotations


class DeclarationError(Exception):
    """Base of everything that is refused when it is declared."""

    exit_code = 2


class SourceError(DeclarationError):
    """A source was declared in a way that cannot work."""
