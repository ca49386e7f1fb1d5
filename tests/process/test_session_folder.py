"""The folder of a Spark session: its own, kept while its process lives, removed by the next one after kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from infra import locks
from infra.spark import session_folder
from infra.spark.session_folder import own_folder

HOLDER = """
import sys, time
from pathlib import Path
from infra.spark.session_folder import own_folder
folder = own_folder(Path(sys.argv[1]))
(folder / "liblz4.so").write_bytes(b"x")
print(folder, flush=True)
time.sleep(float(sys.argv[2]))
"""


def begun(parent: Path, seconds: float) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(parent), str(seconds)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_left_is_gone_when_the_next_begins_and_what_lives_stays(tmp_path: Path) -> None:
    living, its = begun(tmp_path, 300)
    killed, left = begun(tmp_path, 300)
    try:
        assert (left / "liblz4.so").is_file()
        killed.send_signal(signal.SIGKILL)
        killed.wait(30)
        assert left.is_dir()
        ours = own_folder(tmp_path)
        assert ours == own_folder(tmp_path), "one for each process"
        assert not left.exists()
        assert (its / "liblz4.so").is_file()
        assert len({ours, its, left}) == 3
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
            [ours.name, f"{ours.name}.lock", its.name, f"{its.name}.lock"]
        )
    finally:
        for process in (living, killed):
            process.kill()
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()


def test_a_process_that_ends_in_order_removes_it(tmp_path: Path) -> None:
    process, folder = begun(tmp_path, 0)
    with process:
        assert process.wait(30) == 0
    assert not folder.exists()


def test_a_lock_that_somebody_took_for_a_dead_one_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = locks.fcntl.flock
    stolen: list[str] = []

    def steal_first(file: object, how: int) -> None:
        locked(file, how)  # type: ignore[arg-type]
        if not stolen:
            (path,) = tmp_path.glob("*.lock")
            stolen.append(path.name)
            path.unlink()

    monkeypatch.setattr(locks.fcntl, "flock", steal_first)
    folder = own_folder(tmp_path)
    assert stolen
    assert f"{folder.name}.lock" not in stolen
    assert (tmp_path / f"{folder.name}.lock").is_file()
    assert os.access(folder, os.W_OK)


def test_what_cannot_be_removed_now_is_removed_by_a_later_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM that dies after its parent may still write."""
    killed, left = begun(tmp_path, 300)
    with killed:
        killed.kill()
        killed.wait(30)
    with monkeypatch.context() as patch:
        patch.setattr(session_folder.shutil, "rmtree", lambda *_arguments, **_named: None)
        own_folder(tmp_path)
    assert left.is_dir()
    session_folder._owned.pop(tmp_path)
    own_folder(tmp_path)
    assert not left.exists()


def test_what_sessions_left_before_they_had_folders_is_removed_and_nothing_else(tmp_path: Path) -> None:
    left = [tmp_path / f"{name}-{uuid.uuid4()}" for name in ("spark", "blockmgr")] + [tmp_path / "12-0123abcd"]
    others = [tmp_path / "mine", tmp_path / "spark-notes"]
    for folder in (*left, *others):
        folder.mkdir()
    ours = own_folder(tmp_path)
    assert {path for path in tmp_path.iterdir() if path.is_dir()} == {ours, *others}


def test_a_fork_has_a_folder_of_its_own_and_a_folder_that_went_is_made_again(tmp_path: Path) -> None:
    ours = own_folder(tmp_path)
    ours.rmdir()
    assert own_folder(tmp_path) == ours
    assert ours.is_dir()
    forked = os.fork()
    if not forked:
        os._exit(0 if own_folder(tmp_path) != ours else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    assert ours.is_dir()
