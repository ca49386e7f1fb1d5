"""The short fault programme: whatever is done to it, the platform is never wrong, and comes back by itself.

TORTURE_SHOTS and TORTURE_MINUTES make it shorter or longer, TORTURE_KINDS and TORTURE_SEED another one.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torture.disks import missing
from torture.faults import all_faults
from torture.links import PAIRS
from torture.programme import Wanted, torture
from torture.report import write_report
from torture.table import found

SHOTS = int(os.environ.get("TORTURE_SHOTS", "90"))
MINUTES = float(os.environ.get("TORTURE_MINUTES", "15"))
SEED = int(os.environ.get("TORTURE_SEED", "20261116"))
REPORT = Path(__file__).parents[2] / "artifacts" / "test-faults.html"
KINDS = [each for each in os.environ.get("TORTURE_KINDS", "").split(",") if each]


@pytest.mark.slow
def test_nothing_that_is_done_to_it_makes_the_platform_lie(tmp_path: Path) -> None:
    faults = [fault for fault in all_faults() if not KINDS or fault.kind in KINDS]
    result = torture(
        tmp_path,
        Wanted(SEED, SHOTS, MINUTES),
        faults,
        lambda _number, _shot: None,
        links=PAIRS,
        has_disks=not missing(),
    )
    REPORT.parent.mkdir(exist_ok=True)
    write_report(result, REPORT, None)
    assert found(result) == []
    assert result.is_right
    assert result.comparisons > 1_000
    assert result.runs >= 1
    assert result.poison > 10
    assert result.duplicates > 50
    assert result.episodes > 10
    assert len(result.shots) >= min(SHOTS, MINUTES * 2)
    struck = {shot.kind for shot in result.shots if shot.is_injected}
    kinds = {fault.kind for fault in faults if fault.name not in result.left_out}
    assert len(struck) >= min(len(kinds), SHOTS) - 2, f"never struck: {sorted(kinds - struck)}"
