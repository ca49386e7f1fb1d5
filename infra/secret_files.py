"""Secrets that belong to a home: made once from 256 random bits, in files that only their user can read.

Our own servers ask for them, and every process of the home reads them from there: no secret is in an argument, in an
environment or in a log.
"""

from __future__ import annotations

import os
import secrets
import threading
from contextlib import suppress
from pathlib import Path

from infra.errors import HomeError

PRIVATE = 0o600


def ensure_secret(path: Path) -> str:
    """The secret of this file, which is made if there is none. The caller holds the home."""
    if (known := read_secret(path)) is not None:
        return known
    made = secrets.token_urlsafe(32)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_private(path, made + "\n")
    return made


def read_secret(path: Path) -> str | None:
    """The secret of this file, or None where there is no file. Raises HomeError for one that cannot be used."""
    try:
        secret = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise HomeError(f"The secret in {str(path)!r} cannot be read: {reason}. {_remedy(path)}") from None
    if not secret or any(character.isspace() for character in secret):
        raise HomeError(f"{str(path)!r} should hold one secret, and does not. {_remedy(path)}")
    with suppress(OSError):  # where the home is read-only, nobody can change that
        if path.stat().st_mode & 0o077:  # copied by somebody, or restored from an archive
            path.chmod(PRIVATE)
    return secret


def write_private(path: Path, text: str) -> None:
    """Write a file that only its user can read. A reader sees the old one or the new one, whole, also after a crash."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
    partial.unlink(missing_ok=True)  # the mode counts only for a file that is made
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _remedy(path: Path) -> str:
    return f"Remove it while Tidemark is down: the next `tidemark up` makes a new {path.name}."
