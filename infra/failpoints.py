"""Named places in our code where a process under torture may be killed or stopped; nothing at all anywhere else.

Whether there are any is settled when this module is imported: without the variable, `reach` is a function that does
nothing. With it, `reach("archiver.before_commit")` looks for a file of that name in the folder that the variable
names. Whoever finds it takes it away, so that it strikes once, and kills the process as a crash would; or, where the
file says `stop`, lets it stand still until somebody lets it go on.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

VARIABLE = "FAILPOINTS_OF_TIDEMARK"
"""Names the folder. It is no setting: nobody is to set it but a fault programme."""
STOP = "stop"


def _ignore(_name: str) -> None:
    """No failpoints."""


def armed_in(folder: Path) -> Callable[[str], None]:
    """What `reach` is where failpoints may be armed: by a file with the failpoint's name in `folder`."""

    def strike(name: str) -> None:
        try:
            said = (folder / name).read_text(encoding="utf-8")
            (folder / name).unlink()  # of several processes that reach it, one takes it
        except OSError:
            return
        os.kill(os.getpid(), signal.SIGSTOP if said == STOP else signal.SIGKILL)

    return strike


reach: Callable[[str], None] = armed_in(Path(os.environ[VARIABLE])) if os.environ.get(VARIABLE) else _ignore
"""Say that the process is at this place."""
