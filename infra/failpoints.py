"""Failpoints: named points in the code where a fault programme kills or stops the process.

The module decides once, when it is imported. Without the environment variable `reach` is a function that does
nothing. With it, `reach("archiver.before_commit")` looks for a file of that name in the directory that the variable
names. The process that finds it removes it, so that it takes effect once, and kills itself. The content may say more:
`stop` suspends the process until someone resumes it, and a number `3` takes effect the third time the point is reached.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

VARIABLE = "FAILPOINTS_OF_TIDEMARK"
"""The directory with armed failpoints. Not a setting: only fault programmes and tests set it."""
STOP = "stop"


def _ignore(_name: str) -> None:
    """Nothing is armed."""


def armed_in(folder: Path) -> Callable[[str], None]:
    """The `reach` of a process whose failpoints are armed by files in `folder`."""

    def strike(name: str) -> None:
        path = folder / name
        try:
            content = path.read_text(encoding="utf-8").strip()
            if content.isdigit() and int(content) > 1:
                path.write_text(str(int(content) - 1), encoding="utf-8")
                return
            path.unlink()  # of several processes that reach it, one removes it
        except OSError:
            return
        os.kill(os.getpid(), signal.SIGSTOP if content == STOP else signal.SIGKILL)

    return strike


reach: Callable[[str], None] = armed_in(Path(os.environ[VARIABLE])) if os.environ.get(VARIABLE) else _ignore
"""Mark that the process is at this point."""
