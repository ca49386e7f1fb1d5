"""A batch run that is under way while something is done to it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from torture.installation import BATCH_TIMEOUT_S, Installation, end_group


@contextmanager
def run_meanwhile(installation: Installation, *, is_long: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A batch run from the block's beginning on; at its end it is waited for. How it ends is its own affair."""
    process = installation.spawn("batch", "run", "--source", installation.source_name, *(["--full"] if is_long else []))
    try:
        yield process
    finally:
        try:
            process.communicate(timeout=BATCH_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            end_group(process)
            process.communicate()
