"""Find the Java that runs Kafka and Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from infra.errors import JavaNotFound

TESTED = (17, 21)
FIX = "Install Java 17 or 21 (Debian: apt-get install openjdk-17-jre-headless) or point TIDEMARK_JAVA_HOME at one."


class Java(NamedTuple):
    """A Java installation: its folder and the number of its major version."""

    home: Path
    major: int

    @property
    def program(self) -> Path:
        """The `java` executable."""
        return self.home / "bin" / "java"


def find_java(java_home: Path | None) -> Java:
    """The Java to use: the setting, then JAVA_HOME, then PATH. Raises JavaNotFound where none fits."""
    where, home = _candidate(java_home)
    if not (home / "bin" / "java").is_file():
        raise JavaNotFound(f"{where} is {str(home)!r}, where there is no bin/java. {FIX}")
    major = _major(home)
    if major < min(TESTED):
        raise JavaNotFound(f"{where} is Java {major} in {str(home)!r}, which is too old for Spark. {FIX}")
    return Java(home, major)


def _candidate(java_home: Path | None) -> tuple[str, Path]:
    if java_home is not None:
        return "java_home", java_home
    if os.environ.get("JAVA_HOME"):
        return "JAVA_HOME", Path(os.environ["JAVA_HOME"])
    on_path = shutil.which("java")
    if on_path is None:
        raise JavaNotFound(f"There is no java on PATH, and neither JAVA_HOME nor java_home is set. {FIX}")
    return "java on PATH", Path(on_path).resolve().parent.parent


def _major(home: Path) -> int:
    """The version from the `release` file, which costs no JVM start; without that file, java is asked."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = _ask(home / "bin" / "java")
    found = re.search(r'(?:JAVA_VERSION=|version )"(\d+)(?:\.(\d+))?', text)
    if found is None:
        raise JavaNotFound(f"{str(home)!r} does not name its version: {text.strip()[:200]!r}. {FIX}")
    major, minor = int(found[1]), int(found[2] or 0)
    return minor if major == 1 else major  # Java 8 called itself 1.8


def _ask(program: Path) -> str:
    try:
        completed = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaNotFound(f"{str(program)!r} does not run: {error}. {FIX}") from None
    return completed.stderr
