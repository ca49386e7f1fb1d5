"""The page and the table of a run of the fault programme."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from torture.report import by_kind, markdown, page, percentile, write_report
from torture.result import Result, Sample, Shot, Wrong
from torture.table import found, noted, summary, tables


def made(**more: object) -> Result:
    shots = [
        Shot(f"kill {n}", "kill", 10.0 * n, 10.0 * n + 1, 10.0 * n + 4, 1.0 * n, comparisons=100, errors=n)
        for n in range(1, 5)
    ]
    shots.append(Shot("cut <b>&", "network", 60, 64, 66, 2.0, comparisons=7, note='a "note" & <more>'))
    samples = [Sample(float(at), at % 7, {0: at, 1: 2 * at}, degraded=20 < at < 25) for at in range(80)]
    values: dict[str, object] = {"seconds": 80.0, "comparisons": 407, "shots": shots, "samples": samples}
    return Result(5, **{**values, **more})  # type: ignore[arg-type]


class Tags(HTMLParser):
    """Whether what is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass


def test_kinds_are_counted_with_their_percentiles() -> None:
    kill, network = by_kind(made().shots)
    assert (kill.kind, kill.shots, kill.comparisons, kill.errors, kill.p50_s) == ("kill", 4, 400, 10, 2.5)
    assert (network.kind, network.p50_s, network.p95_s) == ("network", 2.0, 2.0)
    assert percentile([], 50) is None
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0


def test_the_page_is_whole_and_asks_nobody_for_anything() -> None:
    text = page(made(), {"dedup off": True})
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert not re.search(r"https?://|src=|@import|url\(", text)
    assert "seed 5" in text
    assert "nothing was wrong" in text
    assert "1 of 1" in text


def test_texts_of_faults_cannot_break_the_page() -> None:
    text = page(made(wrong=[Wrong(3, "a wrong answer", "<script>alert(1)</script>")]))
    assert "<script>" not in text
    assert "cut &lt;b&gt;&amp;" in text
    assert "something was wrong" in text


def test_what_could_not_be_tried_is_named() -> None:
    text = page(made(left_out={"power lost": "needs root", "disk full: kafka": "needs root"}))
    assert "Not tried on this machine" in text
    assert "needs root: power lost, disk full: kafka" in text


def test_a_run_without_shots_or_samples_has_a_page_too(tmp_path: Path) -> None:
    write_report(Result(1), tmp_path / "page.html")
    assert "seed 1" in (tmp_path / "page.html").read_text()


def test_the_readmes_table_says_what_must_be_nought() -> None:
    text = markdown(made(), {"dedup off": True, "fencing off": False})
    assert "| kill | 4 | 400 | 10 | 2.5 s |" in text
    for figure in ("wrong answers: 0", "acknowledged events lost: 0", "double counted: 0", "sabotages caught: 1 of 2"):
        assert f"**{figure}**" in text


def failed(count: int) -> Result:
    """A run of which so many shots were not injected, and took no time to recover."""
    shots = made().shots
    failing = [Shot(f"fill {n}", "disk", 70, 71, 72, 0.0, is_injected=False) for n in range(count)]
    return made(shots=[*shots, *failing], not_injected=[f"fill {n}: <no disk>" for n in range(count)])


def test_what_was_not_injected_is_counted_and_named_and_says_nothing_of_recovery() -> None:
    result = failed(2)
    assert result.is_right
    disk, *_ = by_kind(result.shots)
    assert (disk.kind, disk.shots, disk.not_injected, disk.unrecovered, disk.p50_s) == ("disk", 2, 2, 0, None)
    text = page(result)
    assert '<b class="">2</b><span>of which not injected</span>' in text
    assert "fill 1: &lt;no disk&gt;" in text
    assert "fill 1, 1:10: not injected" in text
    assert dict(summary(result))["of which not injected"] == "2"
    assert found(result) == []
    assert "not injected: fill 1: <no disk>" in noted(result)


def test_a_run_that_tried_too_little_says_so() -> None:
    result = failed(3)
    why = "too little was tried: 3 of 8 faults were not injected, and at most 33% may be"
    assert not result.is_right
    assert found(result) == [f"{why}: fill 0: <no disk>; fill 1: <no disk>; fill 2: <no disk>"]
    assert dict(summary(result))["of which not injected"] == "3, which is too many"
    text = page(result)
    assert 'Fault programme: <b class="bad">too little was tried</b>' in text
    assert f"<li>{why}</li>" in text
    result.lost.append("e1")
    assert "something was wrong" in page(result)


def test_a_kind_that_did_not_recover_shows_it_on_the_page_and_in_the_tables() -> None:
    stuck = Shot("power lost", "power", 70, 71, None, None)
    result = made(shots=[stuck, Shot("again", "power", 75, 76, 78, 2.0)], unrecovered=["70 s: not within 60 s"])
    (power,) = by_kind(result.shots)
    assert (power.shots, power.unrecovered) == (2, 1)
    assert "| power | 2 | 0 | 0 | 2.0 s | 2.0 s | 0 | 1 |" in markdown(result)
    assert "<td>2.0 s</td><td>2.0 s</td><td>0</td><td>1</td>" in page(result)
    assert "power lost, 1:10: not recovered" in page(result)
    _, kinds = tables(result)
    assert [[*column.cells] for column in kinds.columns][-1] == ["1"]
