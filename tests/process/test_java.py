"""Finding Java: the setting, then JAVA_HOME, then PATH; what does not fit is refused with the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.errors import JavaNotFound
from infra.java.find import find_java


def fake_java(home: Path, release: str | None = None, script: str = "") -> Path:
    """A Java installation made of a `java` script and a release file."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    if release is not None:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{release}"\n')
    return home


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")


def refusal(java_home: Path | None) -> str:
    with pytest.raises(JavaNotFound) as error:
        find_java(java_home)
    assert "Install Java 17 or 21" in str(error.value)
    assert error.value.exit_code == 1
    return str(error.value)


def test_setting_beats_java_home_beats_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "path", "17") / "bin"))
    assert find_java(None).home == tmp_path / "path"
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "variable", "17")))
    assert find_java(None).home == tmp_path / "variable"
    assert find_java(fake_java(tmp_path / "setting", "21")).home == tmp_path / "setting"


def test_java_on_path_is_followed_through_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "jdk", "21.0.2")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(tmp_path / "jdk" / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    found = find_java(None)
    assert (found.home, found.major, found.program) == (tmp_path / "jdk", 21, tmp_path / "jdk" / "bin" / "java")


@pytest.mark.parametrize(
    ("release", "major", "is_old"),
    [("17.0.15", 17, False), ("21", 21, False), ("25-ea", 25, False), ("1.8.0_402", 8, True), ("11.0.2", 11, True)],
)
def test_version_is_read_from_the_release_file_and_old_ones_are_refused(
    tmp_path: Path, release: str, major: int, is_old: bool
) -> None:
    home = fake_java(tmp_path, release)
    if is_old:
        assert f"java_home is Java {major} in {str(home)!r}, which is too old for Spark" in refusal(home)
    else:
        assert find_java(home).major == major


@pytest.mark.parametrize(
    ("answer", "major"), [('openjdk version "17.0.1" 2021', 17), ('java version "1.8.0_402"', None), ("hello", None)]
)
def test_java_without_a_release_file_is_asked(tmp_path: Path, answer: str, major: int | None) -> None:
    home = fake_java(tmp_path, script=f"echo '{answer}' >&2")
    if major is None:
        assert str(tmp_path) in refusal(home)
    else:
        assert find_java(home).major == major


def test_no_java_at_all_is_refused() -> None:
    assert refusal(None).startswith("There is no java on PATH, and neither JAVA_HOME nor java_home is set.")


def test_java_home_without_java_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(tmp_path).startswith(f"java_home is {str(tmp_path)!r}, where there is no bin/java.")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert refusal(None).startswith(f"JAVA_HOME is {str(tmp_path)!r}, where there is no bin/java.")


def test_java_that_cannot_run_is_refused(tmp_path: Path) -> None:
    home = fake_java(tmp_path)
    (home / "bin" / "java").write_bytes(b"\x7fELF nothing of the kind")
    assert "does not run" in refusal(home)
    (home / "bin" / "java").chmod(0o644)
    assert "does not run" in refusal(home)
