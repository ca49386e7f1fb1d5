"""What commands print: a table for people, JSON for programs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra import terminal
from tidemark.cli import Output

ROWS: list[dict[str, Any]] = [{"number": 1204, "rows": 98765, "is_new": True, "why": "[red]"}]


def test_numbers_that_are_pasted_into_a_command_have_no_separators(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_result(ROWS, Output.TABLE, as_is=("number",))
    shown = capsys.readouterr().out
    for expected in ("1204", "98,765", "True", "[red]"):
        assert f" {expected} " in shown


def test_programs_get_the_values_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_result(ROWS, Output.JSON, "nothing")
    assert json.loads(capsys.readouterr().out) == ROWS
    terminal.print_result([], Output.JSON, "nothing")
    assert json.loads(capsys.readouterr().out) == []


def test_an_empty_result_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_result([], Output.TABLE, "There are none.")
    assert capsys.readouterr().out == "There are none.\n"
