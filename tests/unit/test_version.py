"""The version of this code: one place has it, an environment follows it, and it grows with the layout of homes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from infra.home import LAYOUT
from infra.version import VERSION, versions

ROOT = Path(__file__).parents[2]
RELEASED = {1: "0.1.0"}
"""The layouts of released versions."""


def test_packages_take_the_version_from_the_code() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"] == {"version": {"attr": "infra.version.VERSION"}}
    assert versions()["tidemark"] == VERSION


def test_version_with_another_layout_has_another_number() -> None:
    assert VERSION not in {version for layout, version in RELEASED.items() if layout != LAYOUT}


@pytest.mark.process
def test_another_version_is_installed_by_the_next_setup(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "requirements-build.lock", "infra/version.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
        os.utime(tmp_path / name, (1e9, 1e9))
    stamp = tmp_path / ".venv" / ".installed"
    stamp.parent.mkdir()
    stamp.touch()

    def would_do() -> str:
        command = ["make", "--dry-run", ".venv/.installed"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert "pip install" not in would_do()
    os.utime(tmp_path / "infra" / "version.py", (4e9, 4e9))
    assert "--editable ." in would_do()
