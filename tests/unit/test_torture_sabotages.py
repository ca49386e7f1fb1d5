"""Each sabotage patches what is there: one that strikes nothing would be caught by nobody."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.torture.sabotaged import BY_NAME, SABOTAGES, SOONEST, StruckNothing, check_struck, sabotage_module
from torture.processes import SERVICES


@pytest.fixture
def broken() -> Iterator[ModuleType]:
    module = sabotage_module()
    yield module
    module.put_back()


PATCHES = [(name, module) for name, patches in sabotage_module().SABOTAGES.items() for module in patches]


def test_every_sabotage_is_provoked_and_known(broken: ModuleType) -> None:
    assert set(BY_NAME) == set(broken.SABOTAGES)
    assert len(BY_NAME) == len(SABOTAGES) >= 21
    assert len(set(SOONEST) & set(BY_NAME)) == 5
    assert {part for each in SABOTAGES for part in each.parts} <= {*SERVICES, "batch"}


@pytest.mark.parametrize(("name", "module"), PATCHES)
def test_a_patch_replaces_what_its_module_has(broken: ModuleType, name: str, module: str) -> None:
    real = importlib.import_module(module)
    broken.SABOTAGES[name][module](real)
    before = {(owner, attribute): value for owner, attribute, value in reversed(broken.REPLACED)}
    assert before, f"{name} patches nothing in {module}"
    assert all(getattr(owner, attribute) is not value for (owner, attribute), value in before.items())
    broken.put_back()
    assert all(vars(owner).get(attribute) is value for (owner, attribute), value in before.items())


def test_a_patch_of_what_is_not_there_is_an_error(broken: ModuleType) -> None:
    with pytest.raises(broken.NothingToPatch, match="'gone'"):
        broken.put(importlib.import_module("views.view"), "gone", print)
    speed_views = importlib.import_module(next(iter(broken.SABOTAGES["merge drops a generation"])))
    with pytest.raises(broken.NothingToPatch, match=r"answer\.lua has no 'gone'"):
        broken.lua(speed_views, "answer", "gone", "")


NOTES = {
    "applied": '{"sabotage": "dedup off", "module": "%s", "error": ""}',
    "failed": '{"sabotage": "dedup off", "module": "%s", "error": "NothingToPatch: it has no _count"}',
    "of another": '{"sabotage": "fencing off", "module": "%s", "error": ""}',
}


@pytest.mark.parametrize(
    ("note", "message"),
    [
        ("applied", None),
        ("failed", "does not fit the platform any more.*no _count"),
        ("of another", r"'dedup off' struck nothing in .* \(speed\)"),
        (None, "'dedup off' struck nothing"),
    ],
)
def test_a_sabotage_that_struck_nothing_is_an_error(tmp_path: Path, note: str | None, message: str | None) -> None:
    struck = tmp_path / "struck"
    (module,) = sabotage_module().SABOTAGES["dedup off"]
    if note is not None:
        struck.write_text(NOTES[note] % module + "\n", encoding="utf-8")
    if message is None:
        check_struck([BY_NAME["dedup off"]], struck)
    else:
        with pytest.raises(StruckNothing, match=message):
            check_struck([BY_NAME["dedup off"]], struck)


def test_a_sabotage_whose_own_code_fails_says_so(
    broken: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(broken.STRUCK_VARIABLE, str(tmp_path / "struck"))
    monkeypatch.setattr(broken, "installed", ["dedup off"])
    view = importlib.import_module("views.view")
    broken.put(view, "View", lambda only_one: only_one)
    with pytest.raises(TypeError):
        view.View(1, 2)
    with pytest.raises(StruckNothing, match=r"lambda.*TypeError"):
        check_struck([BY_NAME["dedup off"]], tmp_path / "struck")
