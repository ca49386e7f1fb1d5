"""Bad conditions: a clear sentence, the right exit code, and nothing left behind."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from infra.errors import JarsError
from infra.home import Home, write_json
from infra.java import jars
from infra.java.find import Java, find_java
from infra.java.jars import cached_jars, fetch_jars, jars_folder, locked_hashes
from infra.settings import load_settings
from infra.stack.ports import LOOPBACK

TIDEMARK = str(Path(sys.executable).with_name("tidemark"))
LAYERS = ("COLLECTOR", "ARCHIVER", "SCHEDULER")


def tidemark(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it with these TIDEMARK_ variables, and with these others as they are."""
    names = {name if name.isupper() else f"TIDEMARK_{name.upper()}": value for name, value in variables.items()}
    return subprocess.run(
        [TIDEMARK, *arguments],
        env={**os.environ, **{f"TIDEMARK_{name}_ENABLED": "false" for name in LAYERS}, **names},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def assert_refused(done: subprocess.CompletedProcess[str], *words: str, code: int = 1) -> None:
    assert done.returncode == code, done
    assert done.stderr.startswith("tidemark: ")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


# ---- `tidemark up` -----------------------------------------------------------


@pytest.mark.parametrize("arguments", [("up",), ("up", "--detach")])
def test_taken_port_is_told_with_its_holder(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        done = tidemark(*arguments, home=str(tmp_path / "home"), redis_port=str(port))
    assert_refused(done, f"Port {port} (redis_port) is taken by", f"process {os.getpid()}", "TIDEMARK_REDIS_PORT")
    assert Home(tmp_path / "home").holder() is None


def test_missing_java_is_told_with_the_fix(tmp_path: Path) -> None:
    done = tidemark("up", home=str(tmp_path / "home"), PATH="/nowhere", JAVA_HOME="")
    assert_refused(done, "There is no java on PATH", "Install Java 17 or 21")
    assert not (tmp_path / "home").exists()


def test_old_java_is_told_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    (tmp_path / "jdk" / "bin" / "java").touch(mode=0o755)
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="1.8.0_402"\n')
    done = tidemark("up", home=str(tmp_path / "home"), java_home=str(tmp_path / "jdk"))
    assert_refused(done, "java_home is Java 8", "too old for Spark", "Install Java 17 or 21")
    assert not (tmp_path / "home").exists()


def test_almost_full_disk_is_told_with_the_figures(tmp_path: Path) -> None:
    done = tidemark("up", "--detach", home=str(tmp_path / "home"), min_free_disk_mb="99999999999")
    assert_refused(done, "MB free; at least 99999999999 MB are required", "TIDEMARK_MIN_FREE_DISK_MB")
    assert not (tmp_path / "home").exists()


def test_home_of_another_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    write_json(tmp_path / "home.json", {"layout": 99, "version": "9.0.0"})
    assert_refused(tidemark("up", home=str(tmp_path)), "written by Tidemark 9.0.0 with layout 99")
    assert [path.name for path in tmp_path.iterdir()] == ["home.json"]


def test_folder_that_is_no_home_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert_refused(tidemark("up", home=str(tmp_path)), "a folder with other things in it")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_place_where_nothing_can_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = tidemark("up", home=str(tmp_path / "file" / "home"), kafka_bootstrap="127.0.0.1:1")
    assert_refused(done, "cannot be made or written")


def test_jar_with_the_wrong_hash_is_refused_by_name(tmp_path: Path) -> None:
    """The real jars, each a link, but one byte of one of them is another."""
    real = jars_folder(load_settings().jars_dir)
    fake = tmp_path / "jars" / real.name
    for path in real.glob("*/*.jar"):
        (fake / path.parent.name).mkdir(parents=True, exist_ok=True)
        (fake / path.parent.name / path.name).symlink_to(path)
    assert tidemark("jars", "--for-spark", jars_dir=str(tmp_path / "jars")).returncode == 0
    victim = next(fake.glob("broker/kafka-clients-*.jar"))
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.unlink()
    victim.write_bytes(content)
    for command in ("up", "jars"):
        done = tidemark(command, home=str(tmp_path / "home"), jars_dir=str(tmp_path / "jars"))
        assert_refused(done, str(victim), "has the wrong content", f"rm -r {fake}")
    assert not (tmp_path / "home").exists()


# ---- fetching jars, from a repository that is a folder -----------------------


class Repository(NamedTuple):
    """A repository of three small jars, an Ivy settings file that names it, and a cache to fetch into."""

    folder: Path
    ivy_settings: Path
    cache: Path
    java: Java

    def fetch(self, java: Java | None = None) -> jars.JarSet:
        return fetch_jars(java or self.java, self.cache, self.ivy_settings)


JARS = {("spark", "one", "1.0"): b"one" * 999, ("spark", "two", "2.0"): b"two" * 999, ("broker", "one", "1.1"): b"new"}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    folder = tmp_path / "repository"
    folder.mkdir()
    dependencies, lines = [], []
    for (conf, name, version), content in JARS.items():
        (folder / f"{name}-{version}.jar").write_bytes(content)
        dependencies.append(
            f'<dependency org="x" name="{name}" rev="{version}" conf="{conf}->default" transitive="false"/>'
        )
        lines.append(f"{hashlib.sha256(content).hexdigest()}  {conf}/{name}-{version}.jar\n")
    ivy_file, hash_file, ivy_settings = (tmp_path / name for name in ("ivy.xml", "jars.sha256", "ivysettings.xml"))
    ivy_file.write_text(
        '<ivy-module version="2.0"><info organisation="tidemark" module="test"/><configurations><conf name="spark"/>'
        f'<conf name="broker"/></configurations><dependencies>{"".join(dependencies)}</dependencies></ivy-module>'
    )
    hash_file.write_text("".join(lines))
    ivy_settings.write_text(
        '<ivysettings><settings defaultResolver="folder"/><resolvers><filesystem name="folder">'
        f'<artifact pattern="{folder}/[artifact]-[revision].[ext]"/></filesystem></resolvers></ivysettings>'
    )
    monkeypatch.setattr(jars, "IVY_FILE", ivy_file)
    monkeypatch.setattr(jars, "HASH_FILE", hash_file)
    monkeypatch.setattr(jars, "locked_hashes", lambda: locked_hashes(hash_file))
    return Repository(folder, ivy_settings, tmp_path / "cache", find_java(None))


def assert_nothing_taken(repository: Repository) -> None:
    assert not jars_folder(repository.cache).exists()
    with pytest.raises(JarsError, match="are not in"):
        cached_jars(repository.cache)


def assert_whole(found: jars.JarSet) -> None:
    content = {(path.parent.name, path.name): path.read_bytes() for path in found.folder.glob("*/*.jar")}
    assert content == {(conf, f"{name}-{version}.jar"): data for (conf, name, version), data in JARS.items()}


def test_jars_are_fetched_once_and_need_no_repository_afterwards(repository: Repository) -> None:
    seen = []
    found = fetch_jars(repository.java, repository.cache, repository.ivy_settings, lambda *each: seen.append(each))
    assert_whole(found)
    assert [done for done, _total, _what in seen] == [0, 1, 2, 3, 3]
    assert {path.name for path in repository.cache.iterdir()} == {found.folder.name, ".lock"}
    repository.ivy_settings.unlink()
    assert repository.fetch(Java(Path("/no/java"), 17)) == found


def test_jar_that_the_repository_lacks_is_named_and_the_next_try_succeeds(repository: Repository) -> None:
    missing = repository.folder / "two-2.0.jar"
    missing.rename(repository.folder / "hidden")
    with pytest.raises(JarsError, match=r"1 jars could not be fetched \(x#two;2\.0.*TIDEMARK_IVY_SETTINGS"):
        repository.fetch()
    assert_nothing_taken(repository)
    (repository.folder / "hidden").rename(missing)
    assert_whole(repository.fetch())


@pytest.mark.parametrize("keep", [0, 100], ids=["empty", "half"])
def test_cut_off_jar_is_thrown_away_and_the_next_try_succeeds(repository: Repository, keep: int) -> None:
    victim = repository.folder / "one-1.0.jar"
    whole = victim.read_bytes()
    victim.write_bytes(whole[:keep])
    with pytest.raises(JarsError):
        repository.fetch()
    assert_nothing_taken(repository)
    victim.write_bytes(whole)
    assert_whole(repository.fetch())


def test_ivy_that_is_killed_half_way_is_not_taken_for_done(repository: Repository, tmp_path: Path) -> None:
    staging = jars_folder(repository.cache).with_name(f"{jars_folder(repository.cache).name}.partial")
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!/bin/sh\nmkdir -p {staging}/jars/spark {staging}/ivy\nprintf half >{staging}/jars/spark/one-1.0.jar\n"
        "kill -KILL $$\n"
    )
    program.chmod(0o755)
    with pytest.raises(JarsError):
        repository.fetch(Java(tmp_path / "jdk", 17))
    assert (staging / "jars" / "spark" / "one-1.0.jar").exists(), "the crash left what it should leave"
    assert_nothing_taken(repository)
    assert_whole(repository.fetch())
    assert not staging.exists()


def test_processes_that_fetch_at_once_do_not_disturb_each_other(repository: Repository) -> None:
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(lambda _: repository.fetch(), range(3)):
            assert_whole(found)
