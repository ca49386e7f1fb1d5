"""Deliberately broken builds that show soonest: the programme catches each of them.

`make soak` tries all of them, and takes intact builds for none (`tests.torture.all_sabotages`).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.torture.sabotaged import BY_NAME, FOLDER, SOONEST, caught


@pytest.mark.slow
@pytest.mark.parametrize("name", SOONEST)
def test_the_programme_catches(name: str, tmp_path: Path) -> None:
    assert str(FOLDER) not in sys.path  # the folder of sabotages must not be on ours
    assert caught(tmp_path / "broken", [BY_NAME[name]]) == {name: True}
