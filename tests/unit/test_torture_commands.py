"""`tidemark torture` as a command: what it refuses, what it leaves behind, and how it is ended."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner
from typer.testing import Result as Ended

from tidemark.commands import torture as commands
from torture.result import ProgrammeResult, Violation

Torment = Callable[..., ProgrammeResult]


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(commands.command)
    return made


@pytest.fixture
def torture(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Run the command, with something else in the place of the programme."""

    def run(programme: Torment, *arguments: str) -> Ended:
        monkeypatch.setattr(commands, "torture", programme)
        return CliRunner().invoke(app, ["--kinds", "kill", *arguments], env={"COLUMNS": "200"})

    return run


def giving(result: ProgrammeResult) -> Torment:
    def programme(place: Path, *_: Any, **__: Any) -> ProgrammeResult:
        (place / "fates.jsonl").write_text("[]")
        return result

    return programme


def never(*_: Any, **__: Any) -> ProgrammeResult:
    raise AssertionError("nothing was to be started")


RIGHT, WRONG = ProgrammeResult(7), ProgrammeResult(7, wrong=[Violation(3, "a wrong answer", "[5] instead of [6]")])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--source", "web"), "--copy-of"),
        (("--report", "/nope/x.html"), "there is no folder '/nope'"),
        (("--report", "/"), "cannot be written"),
        (("--folder", "here", "--report", "here/x.html"), "is in --folder"),
        (("--report", "x.md"), "Name a page: page.html"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_begins(
    torture: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = torture(never, *arguments)
    assert ended.exit_code == 2
    assert says in ended.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("programme", "more", "code", "is_left"),
    [
        (giving(RIGHT), (), 0, False),
        (giving(RIGHT), ("--keep",), 0, True),
        (giving(WRONG), (), 1, True),
        (never, (), 1, True),
    ],
    ids=["right", "kept", "wrong", "ended by an exception"],
)
def test_evidence_is_left_unless_all_is_well_and_it_is_said_where(
    torture: Callable[..., Ended], tmp_path: Path, programme: Torment, more: Any, code: int, is_left: bool
) -> None:
    place = tmp_path / "place"
    ended = torture(programme, "--folder", str(place), *more)
    assert ended.exit_code == code
    assert place.exists() == is_left
    assert (f"kept {place}" in ended.output) == is_left


def test_tables_come_before_the_page_and_a_page_that_fails_leaves_the_evidence(
    torture: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "x.html")

    monkeypatch.setattr(commands, "write_report", full)
    place = tmp_path / "place"
    ended = torture(giving(WRONG), "--folder", str(place), "--report", str(tmp_path / "x.html"))
    assert isinstance(ended.exception, OSError)
    assert "fault programme 7" in ended.output
    assert "a wrong answer: [5] instead of [6]" in ended.output
    assert place.exists()


def test_a_page_is_written_where_it_was_asked_for(torture: Callable[..., Ended], tmp_path: Path) -> None:
    ended = torture(giving(RIGHT), "--folder", str(tmp_path / "place"), "--report", str(tmp_path / "x.html"))
    assert ended.exit_code == 0
    assert "nothing was wrong" in (tmp_path / "x.html").read_text()
    assert "| wrong answers | 0 |" in (tmp_path / "x.md").read_text()
    assert f"wrote {tmp_path / 'x.html'} and {tmp_path / 'x.md'}" in ended.stderr


def test_sabotages_are_listed_in_the_tables_too(torture: Callable[..., Ended], tmp_path: Path) -> None:
    (tmp_path / "sabotages.json").write_text('{"dedup off": true}')
    torture(giving(RIGHT), "--report", str(tmp_path / "x.html"), "--sabotages", str(tmp_path / "sabotages.json"))
    assert "| dedup off | caught |" in (tmp_path / "x.md").read_text()


def test_tables_replace_those_of_an_earlier_run_and_nothing_else(torture: Callable[..., Ended], tmp_path: Path) -> None:
    report = ("--report", str(tmp_path / "README.html"))
    torture(giving(WRONG), *report, "--folder", str(tmp_path / "place"))
    assert torture(giving(RIGHT), *report).exit_code == 0
    assert "nothing was wrong" in (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text("# Ours\n")
    ended = torture(never, *report)
    assert ended.exit_code == 2
    assert "is something else" in ended.output
    assert (tmp_path / "README.md").read_text() == "# Ours\n"


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in commands.ENDING}
    yield
    for each, handler in before.items():
        assert signal.getsignal(each) == handler
        signal.signal(each, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.usefixtures("handlers")
def test_a_signal_ends_it_as_ctrl_c_does_and_another_does_not_disturb_the_end(number: signal.Signals) -> None:
    ends: list[str] = []

    def programme() -> None:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGHUP)
            ends.append("disks")

    with pytest.raises(KeyboardInterrupt), commands.ended_by_signals():
        programme()
    assert ends == ["disks"]


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with commands.ended_by_signals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
