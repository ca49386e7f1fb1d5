"""Run a command that ends when its parent ends, even if the parent is killed with SIGKILL.

Started as `python -I -S leash.py <parent pid> <command> ...`. On Linux the kernel holds the leash: the parent-death
signal is set and the command takes this process's place, so nothing stays behind. Elsewhere this process waits beside
the command and ends it when the parent is gone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
LEASH = (sys.executable, "-I", "-S", __file__)
"""This program, to be followed by the parent's number and the command."""


def leashed(command: Sequence[str]) -> list[str]:
    """`command` on a leash that this process holds. Start it from a thread that lives as long as it should."""
    return [*LEASH, str(os.getpid()), *command]


def leash_by_kernel(parent: int, command: list[str]) -> None:
    """Become `command`, with SIGKILL to follow the parent's death. Does not return."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died before the signal was set, and no signal will come
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606  exactly what is wanted


def leash_by_watching(parent: int, command: list[str], pause_s: float = 0.2) -> int:
    """Run `command` until it ends or the parent is gone. Returns its exit code."""
    early: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _frame: object) -> None:
        child.send_signal(number) if child else early.append(number)

    # Before the command is started: a signal in between would end us and leave the command without a leash.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, pass_on)
    child = subprocess.Popen(command)
    for number in early:
        child.send_signal(number)
    while child.poll() is None:
        if os.getppid() != parent:
            child.kill()
        time.sleep(pause_s)
    return child.returncode


def main(arguments: list[str]) -> int:
    """The program: see the module's first sentence."""
    parent, command = int(arguments[0]), arguments[1:]
    try:
        if sys.platform == "linux":
            leash_by_kernel(parent, command)
        return leash_by_watching(parent, command)
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
        return 127  # as a shell would say


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
