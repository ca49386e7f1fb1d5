"""The main function that the layers' processes share: what it tells, and the exit code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from infra.errors import HomeInUse, InfraError
from infra.processes import run_process
from infra.settings import Settings


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """The program logs to the standard error of this test, which is closed after it."""
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("error", "code", "told", "has_traceback"),
    [
        (None, 0, [], False),
        (InfraError("there is no disk"), 1, ["there is no disk"], False),
        (HomeInUse("held by another"), 75, ["held by another"], False),
        (ValueError("a defect"), 1, ["a defect"], True),
    ],
)
def test_end_of_the_work_is_told_and_is_the_exit_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception | None,
    code: int,
    told: list[str],
    has_traceback: bool,
) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    said: list[str] = []

    def work(settings: Settings) -> None:
        assert settings.home == tmp_path
        if error is not None:
            raise error

    assert run_process(work, lambda _settings, why: said.append(why)) == code
    assert said == told
    logged = capsys.readouterr().err
    assert all(why in logged for why in told)
    assert ("Traceback" in logged) is has_traceback
