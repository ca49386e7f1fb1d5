"""The archive of Spark's classes: named after all that it was made from, used where it is, missed by nobody."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

import pytest

from infra.errors import JarsError
from infra.java import class_archive
from infra.java.class_archive import find_archive, make_archive, option
from infra.java.find import Java
from infra.java.jars import JarSet


@pytest.fixture
def java(tmp_path: Path) -> Java:
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="17.0.1"\n', encoding="utf-8")
    return Java(home, 17)


@pytest.fixture
def jars(tmp_path: Path) -> JarSet:
    (tmp_path / "jars" / "spark").mkdir(parents=True)
    (tmp_path / "jars" / "spark" / "a.jar").write_bytes(b"one")
    return JarSet(tmp_path / "jars")


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What training was asked to write; it writes at once."""
    made: list[Path] = []

    def train(making: Path, _java: Java, _jars: JarSet) -> None:
        making.write_bytes(b"classes")
        made.append(making)

    monkeypatch.setattr(class_archive, "_train", train)
    return made


def test_a_jar_or_a_java_that_changed_has_another_archive_and_others_stay_for_whom_they_fit(
    java: Java, jars: JarSet, tmp_path: Path, trained: list[Path]
) -> None:
    folder = tmp_path / "packages"
    first = make_archive(java, jars, folder)
    assert find_archive(java, jars, folder) == first == make_archive(java, jars, folder)
    assert len(trained) == 1
    (jars.folder / "spark" / "a.jar").write_bytes(b"another")
    assert find_archive(java, jars, folder) is None
    second = make_archive(java, jars, folder)
    (java.home / "release").write_text('JAVA_VERSION="17.0.12"\n', encoding="utf-8")
    third = make_archive(java, jars, folder)
    (jars.folder / "spark" / "b.jar").write_bytes(b"more")
    os.utime(first, (1, 1))
    fourth = make_archive(java, jars, folder)
    assert set(folder.iterdir()) == {second, third, fourth}, "one that is old went"


@pytest.mark.parametrize("kept", [0, 3])
def test_an_archive_that_is_cut_short_is_not_used_and_made_anew(
    java: Java, jars: JarSet, tmp_path: Path, trained: list[Path], kept: int
) -> None:
    """A JVM dies of one."""
    folder = tmp_path / "packages"
    made = make_archive(java, jars, folder)
    made.write_bytes(made.read_bytes()[:kept])
    assert find_archive(java, jars, folder) is None
    assert make_archive(java, jars, folder).read_bytes() == b"classes"
    assert len(trained) == 2


@pytest.mark.parametrize("path", ["/a b/c.jsa", "/it's/c.jsa", '/o"x/c.jsa', "/back\\slash/c.jsa"])
def test_spark_takes_an_option_with_any_path_for_one(path: str) -> None:
    """As Spark's launcher reads it: a backslash makes the next character plain, within quotes too."""
    options = option("-XX:SharedArchiveFile", Path(path)).split(" -Xlog", 1)[0]
    assert shlex.split(options) == [f"-XX:SharedArchiveFile={path}"]


@pytest.mark.process
def test_what_cannot_be_made_says_why_and_leaves_nothing(
    java: Java, jars: JarSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "packages"
    with pytest.raises(JarsError, match=r"no archive was written: [\s\S]*no bin/java"):
        make_archive(java, jars, folder)
    assert list(folder.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(JarsError, match=r"no archive can be made in .*: Not a directory"):
        make_archive(java, jars, tmp_path / "file" / "below")
    monkeypatch.setattr(class_archive, "MAKING_S", 0.01)
    with pytest.raises(JarsError, match=r"within 0\.01 s"):
        make_archive(java, jars, folder)
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_trained(
    java: Java, jars: JarSet, tmp_path: Path, trained: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_named: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("touch", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    with pytest.raises(JarsError, match="Read-only file system"):
        make_archive(java, jars, tmp_path / "packages")
    assert trained == []
