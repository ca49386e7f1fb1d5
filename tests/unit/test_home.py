"""The home folder: what is taken for a home, who may use it, and what a crash may leave in it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.errors import HomeError, HomeInUse
from infra.home import LAYOUT, Home, read_json, write_json
from infra.version import VERSION
from tests.conftest import wait_until


def refusal(home: Home) -> str:
    with pytest.raises(HomeError) as error:
        home.check()
    assert error.value.exit_code == 1
    return str(error.value)


def test_home_is_made_once_and_only_for_its_user(tmp_path: Path) -> None:
    home = Home(tmp_path / "deep" / "home")
    home.check()
    assert not home.root.exists(), "a check touches nothing"
    home.prepare()
    home.prepare()
    assert read_json(home.root / "home.json")["layout"] == LAYOUT
    assert stat.S_IMODE(home.root.stat().st_mode) == 0o700


def test_empty_folder_becomes_a_home(tmp_path: Path) -> None:
    Home(tmp_path).prepare()
    assert Home(tmp_path).exists


def test_folder_with_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert "a folder with other things in it" in refusal(Home(tmp_path))
    with pytest.raises(HomeError):
        Home(tmp_path).prepare()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "which is a file. Name a folder." in refusal(Home(tmp_path / "file"))


def test_place_where_nothing_can_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HomeError, match="cannot be made or written: Not a directory"):
        Home(tmp_path / "file" / "home").prepare()


def test_home_of_a_newer_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.prepare()
    newer = {"layout": 99, "version": "42.0.0"}
    write_json(tmp_path / "home.json", newer)
    said = refusal(home)
    for word in ("written by Tidemark 42.0.0 with layout 99", f"knows layouts up to {LAYOUT}", "TIDEMARK_HOME"):
        assert word in said
    for act in (home.prepare, home.claim):
        with pytest.raises(HomeError, match="layout 99"):
            act()
    assert read_json(tmp_path / "home.json") == newer, "it is as the newer version left it"


def test_home_of_an_older_version_says_from_the_first_write_on_that_this_one_wrote(tmp_path: Path) -> None:
    """Tidemark 0.1.0 refuses every layout but 1, so it cannot damage the home afterwards."""
    home = Home(tmp_path)
    write_json(tmp_path / "home.json", {"layout": 1, "version": "0.1.0", "remark": "stays"})
    home.check()
    assert read_json(tmp_path / "home.json")["layout"] == 1, "a check touches nothing"
    home.claim()
    assert read_json(tmp_path / "home.json") == {"layout": LAYOUT, "version": VERSION, "remark": "stays"}


def test_claiming_what_is_no_home_makes_none(tmp_path: Path) -> None:
    Home(tmp_path / "none").claim()
    assert not (tmp_path / "none").exists()


def test_home_with_a_restore_that_was_not_completed_is_not_used(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.prepare()
    write_json(home.restore_file, {"backup": 7, "source": "/backups", "id": "x"})
    with pytest.raises(HomeError, match="`tidemark restore /backups --backup 7`"):
        home.prepare()


@pytest.mark.parametrize("mark", ["", "[]", "{}", '{"layout": "1"}', '{"layout": true}', '{"layout": 0}', "{"])
def test_damaged_mark_is_refused(tmp_path: Path, mark: str) -> None:
    (tmp_path / "home.json").write_text(mark)
    assert "is damaged" in refusal(Home(tmp_path))


@pytest.mark.parametrize("crash_at", ["mkdir", "replace"])
def test_home_is_usable_after_a_crash_at_any_step_of_making_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: str
) -> None:
    """Crash at the first, second, third ... call until making it succeeds; each time the next attempt must be taken."""
    real = getattr(Path, crash_at)
    for calls_before_crash in range(20):
        calls = iter(range(20))

        def crash(
            *arguments: object, calls: object = calls, limit: int = calls_before_crash, **options: object
        ) -> object:
            if next(calls) >= limit:
                raise KeyboardInterrupt
            return real(*arguments, **options)

        root = tmp_path / str(calls_before_crash)
        with monkeypatch.context() as patch:
            patch.setattr(Path, crash_at, crash)
            try:
                Home(root).prepare()
            except KeyboardInterrupt:
                crashed = True
            else:
                crashed = False
        Home(root).prepare()
        assert Home(root).exists
        if not crashed:
            assert calls_before_crash > 0, "the crash was never reached"
            return
    pytest.fail("making a home never succeeded")


def test_full_disk_is_refused_with_the_figures(tmp_path: Path) -> None:
    home = Home(tmp_path / "not" / "made")
    home.check_disk(0)
    with pytest.raises(HomeError, match=r"has \d+ MB free; at least 99999999999 MB are required.*MIN_FREE_DISK_MB"):
        home.check_disk(99_999_999_999)


# ---- the lock ----------------------------------------------------------------


def test_second_holder_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.prepare()
    assert not home.is_locked()
    assert home.holder() is None
    with home.locked():
        assert home.is_locked()
        assert home.holder() == os.getpid()
        with pytest.raises(HomeInUse, match=f"in use by process {os.getpid()}") as error, home.locked():
            pass
        assert error.value.exit_code == 75
    assert not home.is_locked()


@pytest.mark.process
def test_lock_ends_with_a_holder_that_was_killed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.prepare()
    code = (
        "import pathlib, sys, time; from infra.home import Home\n"
        "with Home(pathlib.Path(sys.argv[1])).locked(): print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        assert home.holder() == holder.pid
        holder.kill()
    assert not home.is_locked()
    with home.locked():
        pass


def test_whoever_only_looks_does_not_keep_a_supervisor_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tidemark status` in a loop holds the lock for moments; `up` must get it all the same."""
    monkeypatch.setattr("infra.home.LOCK_CHECK_S", 10.0)  # a look may last, where others have the processor
    home = Home(tmp_path)
    home.prepare()
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            home.is_locked()

    looker = threading.Thread(target=look)
    looker.start()
    try:
        for _ in range(200):
            with home.locked():
                pass
    finally:
        is_over.set()
        looker.join()


# ---- JSON files --------------------------------------------------------------


def test_json_file_is_whole_for_every_reader(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_json(path, {"n": 0})
    is_over = threading.Event()

    def write() -> None:
        for number in range(1, 200):
            write_json(path, {"n": number, "ballast": "x" * 20_000})
        is_over.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while not is_over.is_set():
        seen.append(read_json(path)["n"])
    writer.join()
    assert seen == sorted(seen)
    assert [found.name for found in tmp_path.iterdir()] == ["status.json"]


@pytest.mark.parametrize("content", [None, "", "{", "\x00"])
def test_missing_or_damaged_json_reads_as_none(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "x.json").write_text(content)
    assert read_json(tmp_path / "x.json") is None


def test_waiting_in_vain_says_for_what() -> None:
    """The tests' own patience: it fails with words, not with a hang."""
    with pytest.raises(pytest.fail.Exception, match="for the moon, in vain"):
        wait_until("the moon", lambda: None, deadline_s=0)


def test_two_who_look_at_once_do_not_take_each_other_for_a_supervisor(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.prepare()
    with home.locked():
        pass
    with ThreadPoolExecutor(4) as pool:
        assert not any(pool.map(lambda _: home.is_locked(), range(2000)))


def test_folder_with_a_comma_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HomeError, match="comma"):
        Home(tmp_path / "a,b").check()
