"""Locks on files, the stamp of a file, back-off and times: the small things that many modules share."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.backoff import pause_after
from infra.disk import file_stamp
from infra.locks import LockHeld, hold, holder_of_lock
from infra.times import iso_utc, readable_utc

HOLD = """
import sys
from pathlib import Path
from infra.locks import hold
with hold(Path(sys.argv[1]), wait_s=0, holder="process 7"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held_elsewhere(path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        try:
            yield other
        finally:
            other.kill()


@pytest.mark.process
def test_lock_of_another_process_is_refused_with_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder_of_lock(path) is None
    with held_elsewhere(path):
        assert holder_of_lock(path) == "process 7"
        with pytest.raises(LockHeld) as refused, hold(path, wait_s=0):
            pass
        assert refused.value.holder == "process 7"
    assert holder_of_lock(path) is None
    with hold(path, wait_s=0, holder="us"):
        assert path.read_text() == "us"


@pytest.mark.process
def test_lock_without_a_bound_waits_for_its_turn(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with held_elsewhere(path) as other:
        other.kill()
        with hold(path):
            assert other.wait() != 0


def test_lock_file_for_its_user_alone(tmp_path: Path) -> None:
    with hold(tmp_path / "lock", mode=0o600):
        assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600


def test_stamp_changes_with_the_file(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    assert file_stamp(path) is None
    path.write_text("a")
    first = file_stamp(path)
    assert file_stamp(path) == first
    other.write_text("b")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)
    assert file_stamp(path) != first, "replaced by one of the same size and time"


@pytest.mark.parametrize(
    ("failures", "pause_s"), [(1, 0.5), (2, 1.0), (3, 2.0), (6, 10.0), (10**6, 10.0)]
)  # fmt: skip
def test_pause_doubles_up_to_its_maximum(failures: int, pause_s: float) -> None:
    assert pause_after(failures, 0.5, 10.0) == pause_s


def test_times_are_written_in_utc() -> None:
    assert iso_utc(0) == "1970-01-01T00:00:00Z"
    assert iso_utc(0.5) == "1970-01-01T00:00:00.500000Z"
    assert readable_utc(86400) == "1970-01-02 00:00:00 UTC"
