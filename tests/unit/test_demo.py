"""The demo leaves everything of the user alone, and shows one table."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from infra import terminal
from infra.settings import Settings, load_settings
from tidemark.demo.board import Board
from tidemark.demo.demo import demo_settings


def test_demo_never_touches_a_kafka_redis_or_master_dataset_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "KAFKA_BOOTSTRAP": "production.example:9092",
        "REDIS_URL": "redis://production.example:6379/0",
        "MASTER_DIR": str(tmp_path / "records"),
        "KAFKA_PORT": "9999",
        "COLLECTOR_ENABLED": "false",
        "SPARK_MASTER": "spark://production.example:7077",
    }.items():
        monkeypatch.setenv(f"TIDEMARK_{name}", value)
    users = load_settings(home=tmp_path / "home", jars_dir=tmp_path / "jars")
    ours = demo_settings(users)
    assert (ours.home, ours.jars_dir) == (tmp_path / "home-demo", tmp_path / "jars")
    defaults = Settings.model_construct()
    for name in ("kafka_bootstrap", "redis_url", "master_dir", "kafka_port", "collector_enabled", "spark_master"):
        assert getattr(ours, name) == getattr(defaults, name), name


ROW = {"answer": "hits 20412, visitors 1204", "batch": 20000, "speed": 412, "proof": "equal"}


@pytest.mark.parametrize("is_terminal", [True, False])
def test_board_is_one_table_that_is_redrawn(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    written = io.StringIO()
    console = Console(file=written, width=80, height=50, force_terminal=is_terminal, markup=False)
    monkeypatch.setattr(terminal, "out", console)
    board = Board()
    query = "page_latency url=/pricing answers=requests,ms,slow_share"
    with board.shown():
        for number in range(14):
            board.update(f"Stage {number}", {query: ROW, "page_hits grain=all": ROW}, "0:120,1:98")
        assert bool(written.getvalue()) is is_terminal
    shown = Text.from_ansi(written.getvalue()).plain
    assert "Stage 13, at the cut 0:120,1:98" in shown
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    assert {"20,000", "412", "equal", "page_hits", "answers=requests,ms,slow_share"} <= set(shown.split())
    if is_terminal:
        # Each update moves the cursor up over the table before it.
        assert written.getvalue().count("\x1b[1A") >= 13 * 4
    else:
        assert shown.count("Stage") == 1
