"""The wheel, as somebody else would get it: built from the tracked files, installed into an empty environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import pytest

from infra.version import VERSION
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
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the tracked files alone."""
    folder = tmp_path_factory.mktemp("wheel")
    source = copy_tracked_files(folder / "source")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    (built,) = folder.glob("tidemark-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("installed")
    python = folder / "an environment" / "bin" / "python"  # a path with a space, as people have
    run(sys.executable, "-m", "venv", str(folder / "an environment"))
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(*pip, "install", "--require-hashes", "-r", str(ROOT / "requirements-build.lock"))
    lock = folder / "requirements.lock"
    lock.write_text(without_tools((ROOT / "requirements.lock").read_text(encoding="utf-8")), encoding="utf-8")
    run(*pip, "install", "--require-hashes", "--no-build-isolation", "--no-compile", "-r", str(lock))
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


@pytest.mark.soak
def test_every_package_is_imported_from_the_wheel(installed: Installed) -> None:
    code = f"import json, {', '.join(PACKAGES)}; print(json.dumps([m.__file__ for m in ({', '.join(PACKAGES)})]))"
    for path in json.loads(installed.run("python", "-c", code)):
        assert Path(path).is_relative_to(installed.bin.parent)


def test_every_module_of_the_repository_is_in_the_wheel_and_nothing_else(wheel: Path) -> None:
    """Also the files that are no modules: the lock of the jars, the configurations of the logs."""
    ours = {
        str(path.relative_to(ROOT)) for path in repository_files(ROOT) if path.relative_to(ROOT).parts[0] in PACKAGES
    }
    assert {"infra/java/ivy.xml", "infra/java/jars.sha256", "infra/stack/leash.py"} <= ours
    assert wheel.name.startswith(f"tidemark-{VERSION}-")
    with ZipFile(wheel) as held:
        assert {name for name in held.namelist() if ".dist-info/" not in name} == ours


@pytest.mark.soak
def test_command_runs_from_the_wheel(installed: Installed) -> None:
    version = json.loads(installed.run("tidemark", "version", "-o", "json"))
    assert version["tidemark"] == VERSION
    assert version["pyspark"] == "4.2.0"
    rows = {row["name"]: row for row in json.loads(installed.run("tidemark", "config", "-o", "json"))}
    assert rows["home"]["value"] == str(installed.elsewhere / ".tidemark")
    said = installed.run("tidemark", "jars")
    assert "every hash right" in said
    assert f"kept for quicker starts in {installed.bin.parent}" in said


@pytest.mark.soak
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
