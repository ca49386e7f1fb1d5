"""The wheel, as somebody else would get it: built from the tracked files, installed into an empty environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import repository_files

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "tidemark", "views", "master_dataset", "hand_off", "batch_layer", "speed_layer", "serving_layer", "infra",
    "torture",
)  # fmt: skip
NOT_AT_RUN_TIME = (
    *("ruff", "mypy", "hypothesis", "schemathesis", "import-linter", "grimp", "pytest", "types-"),
    *("chdb", "duckdb", "deltalake", "arro3-core", "pandas", "playwright", "greenlet", "pyee"),
)
"""Large packages of developers, left out to save time. What the others need stays locked and hashed."""


class Installed(NamedTuple):
    """An environment with the wheel in it, and a folder elsewhere to stand in."""

    bin: Path
    elsewhere: Path

    def run(self, program: str, *arguments: str, **variables: str) -> str:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEMARK_", "PYTHON"))}
        done = subprocess.run(
            [self.bin / program, *arguments],
            cwd=self.elsewhere, env=clean | variables, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("wheel")
    python = folder / "an environment" / "bin" / "python"  # a path with a space, as people have
    run(sys.executable, "-m", "venv", str(folder / "an environment"))
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(*pip, "install", "--require-hashes", "-r", str(ROOT / "requirements-build.lock"))
    lock = folder / "requirements.lock"
    lock.write_text(without_tools((ROOT / "requirements.lock").read_text(encoding="utf-8")), encoding="utf-8")
    run(*pip, "install", "--require-hashes", "--no-build-isolation", "--no-compile", "-r", str(lock))
    source = copy_tracked_files(folder / "source")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("tidemark-*.whl")
    run(*pip, "install", "--no-deps", "--no-index", str(wheel))
    run(*pip, "check")
    (folder / "elsewhere").mkdir()
    yield Installed(python.parent, folder / "elsewhere")
    shutil.rmtree(folder)  # half a gigabyte


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def without_tools(lock: str) -> str:
    blocks = re.split(r"\n(?=[a-zA-Z])", lock)
    return "\n".join(block for block in blocks if not block.startswith(NOT_AT_RUN_TIME)) + "\n"


def copy_tracked_files(target: Path) -> Path:
    for path in repository_files(ROOT):
        copy = target / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    return target


@pytest.mark.slow
def test_every_package_is_imported_from_the_wheel(installed: Installed) -> None:
    code = f"import json, {', '.join(PACKAGES)}; print(json.dumps([m.__file__ for m in ({', '.join(PACKAGES)})]))"
    for path in json.loads(installed.run("python", "-c", code)):
        assert Path(path).is_relative_to(installed.bin.parent)


@pytest.mark.slow
def test_every_module_of_the_repository_is_in_the_wheel(installed: Installed) -> None:
    """Also the files that are no modules: the lock of the jars, the configurations of the logs."""
    (site,) = (installed.bin.parent / "lib").glob("python*/site-packages")
    ours = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {"infra/java/ivy.xml", "infra/java/jars.sha256", "infra/stack/leash.py"} <= ours
    assert not [name for name in sorted(ours) if not (site / name).is_file()]


@pytest.mark.slow
def test_wheel_brings_no_tests_and_no_benchmarks(installed: Installed) -> None:
    (site,) = (installed.bin.parent / "lib").glob("python*/site-packages")
    (top_level,) = site.glob("tidemark-*.dist-info/top_level.txt")
    assert set(top_level.read_text().split()) == set(PACKAGES)


@pytest.mark.slow
def test_command_runs_from_the_wheel(installed: Installed) -> None:
    version = json.loads(installed.run("tidemark", "version", "-o", "json"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert version["tidemark"] == project["version"]
    assert version["pyspark"] == "4.2.0"
    rows = {row["name"]: row for row in json.loads(installed.run("tidemark", "config", "-o", "json"))}
    assert rows["home"]["value"] == str(installed.elsewhere / ".tidemark")
    said = installed.run("tidemark", "jars")
    assert "every hash right" in said
    assert f"kept for quicker starts in {installed.bin.parent}" in said


@pytest.mark.slow
def test_stack_comes_up_from_the_wheel(installed: Installed) -> None:
    """Real Kafka and real Redis, from a folder that is not the repository."""
    bare = {
        f"TIDEMARK_{name}_ENABLED": "false"
        for name in ("COLLECTOR", "ARCHIVER", "SPEED", "SCHEDULER", "SERVING", "ALERTS")
    }
    said = installed.run("tidemark", "up", "--detach", **bare)
    try:
        assert "kafka ready" in said
        assert "redis ready" in said
    finally:
        installed.run("tidemark", "down")
