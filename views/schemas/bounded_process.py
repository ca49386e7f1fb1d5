"""Run a command that has so much CPU time, and that ends when its parent ends: what it works on may be anybody's.

Started as `python -I -S bounded_process.py <parent pid> <seconds> <command> ...`. The parent has a deadline of its own;
these bounds hold where the parent was killed. Only Linux has a parent-death signal; the CPU time is bounded everywhere.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def bounded(command: Sequence[str], cpu_s: int) -> list[str]:
    """`command` in these bounds. The thread that starts it has to wait for it."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(cpu_s), *command]


def main(arguments: list[str]) -> None:
    """Become the command. Does not return."""
    parent, cpu_s, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    if sys.platform == "linux":
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
        if os.getppid() != parent:  # it died before the signal was set, and no signal will come
            sys.exit(1)
    os.execv(command[0], command)  # noqa: S606  exactly what is wanted


if __name__ == "__main__":
    main(sys.argv[1:])
