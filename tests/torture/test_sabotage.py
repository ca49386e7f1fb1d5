"""Deliberately broken builds: the programme catches each of them, and takes an intact one for none."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.torture.sabotaged import BY_NAME, CONTROLS, FOLDER, SABOTAGES, Sabotage, caught, taken_for

WANTED = os.environ.get("TORTURE_SABOTAGES", "")
"""`all`, or nothing: those that are found in a minute or two. `make torture` tries all of them too."""
TRIED = list(BY_NAME) if WANTED else [
    "fencing off", "dedup off", "atomic step split in two", "cut off by one", "poison takes its neighbours",
    "merge drops a generation", "a lost Redis is not told", "acknowledged before the broker", "auto-commit on",
    "dead letters dropped",
]  # fmt: skip


@pytest.fixture(scope="module")
def broken() -> ModuleType:
    """The module that breaks builds, in this process, where it breaks nothing."""
    spec = importlib.util.spec_from_file_location("broken_builds", FOLDER / "sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_ten_and_each_is_provoked_and_known(broken: ModuleType) -> None:
    assert len(SABOTAGES) >= 10
    assert set(BY_NAME) == set(broken.SABOTAGES)


def test_what_they_patch_is_still_there(broken: ModuleType) -> None:
    """A sabotage of a function that has another name by now would break nothing, and be caught by nobody."""
    for name, patches in broken.SABOTAGES.items():
        for module, patch in patches.items():
            real = importlib.import_module(module)
            copy = Recorder(real)
            patch(copy)
            assert copy.patched, f"{name} patches nothing in {module}"
            assert [each for each in copy.patched if not hasattr(real, each)] == [], f"{name} in {module}"


class Recorder:
    """A module as patches see it: what they read is real, what they set is noted and goes nowhere."""

    def __init__(self, real: ModuleType) -> None:
        object.__setattr__(self, "_real", real)
        object.__setattr__(self, "patched", set())

    def __getattr__(self, name: str) -> object:
        found = getattr(self._real, name)
        if isinstance(found, type):
            self.patched.add(name)
            return type(found.__name__, (found,), {})  # a class of its own: patches do not reach the real one
        return found

    def __setattr__(self, name: str, value: object) -> None:
        self.patched.add(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIED)
def test_the_programme_catches(name: str, tmp_path: Path) -> None:
    assert str(FOLDER) not in sys.path  # the folder of sabotages must not be on ours
    assert caught(tmp_path / "broken", [BY_NAME[name]]) == {name: True}


if WANTED:

    @pytest.mark.slow
    @pytest.mark.parametrize("group", CONTROLS, ids=lambda group: group[0].provoke.__name__)
    def test_an_intact_build_is_taken_for_none_of_them(group: list[Sabotage], tmp_path: Path) -> None:
        assert taken_for(tmp_path / "intact", group) == {each.name: False for each in group}
