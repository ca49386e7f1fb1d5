"""Errors of queries: they name settings that exist, and documents point to pages that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import serving_layer
from infra.settings import Settings
from serving_layer.query.limits import QueryBudget, timed_out
from serving_layer.readers.limits import ExecutionLimits

FOLDER = Path(str(serving_layer.__file__)).parent
SETTING = re.compile(r"(?<![\w.])(?:serving|query)_[a-z]+(?:_[a-z]+)*_(?:s|mb|kb|hours|rows|groups|periods|values)\b")


def test_every_setting_that_the_serving_layer_names_exists() -> None:
    named = {
        (path.name, name) for path in FOLDER.rglob("*.py") for name in SETTING.findall(path.read_text(encoding="utf-8"))
    }
    assert ("errors.py", "serving_timeout_s") in named
    assert [found for found in named if found[1] not in Settings.model_fields] == []


@pytest.mark.parametrize(
    ("limits", "setting"),
    [
        (ExecutionLimits(max_groups=1), "serving_max_groups"),
        (ExecutionLimits(max_state_mb=0.000001), "serving_max_state_mb"),
        (ExecutionLimits(timeout_s=0), "serving_timeout_s"),
    ],
)
def test_a_query_over_its_budget_is_refused_with_the_setting(limits: ExecutionLimits, setting: str) -> None:
    with pytest.raises(Exception, match=rf"\({setting}\)"):
        QueryBudget(limits, deadline=0.0).spend(2, 100)
    assert setting in Settings.model_fields


def test_a_query_that_takes_too_long_says_so() -> None:
    assert timed_out(2.5).detail.startswith("The query took longer than 2.5 s (serving_timeout_s). Ask for")
