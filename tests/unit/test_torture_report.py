"""The page and the table of a run of the fault programme."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torture.report import by_kind, is_tables, markdown, page, percentile, tables_path, write_report
from torture.result import ProgrammeResult, Sample, Shot, Violation, read_result
from torture.sampler import Sampler
from torture.table import findings, remarks, summary, tables
from torture.timeline import picture


def made(**more: object) -> ProgrammeResult:
    shots = [
        Shot(f"kill {n}", "kill", 10.0 * n, 10.0 * n + 1, 10.0 * n + 4, 1.0 * n, comparisons=100, errors=n)
        for n in range(1, 5)
    ]
    shots.append(Shot("cut <b>&", "network", 60, 64, 66, 2.0, comparisons=7, note='a "note" & <more>'))
    samples = [Sample(float(at), at % 7, {0: at, 1: 2 * at}, degraded=20 < at < 25) for at in range(80)]
    values: dict[str, object] = {"seconds": 80.0, "comparisons": 407, "shots": shots, "samples": samples}
    return ProgrammeResult(5, **{**values, **more})  # type: ignore[arg-type]


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
    text = page(made(wrong=[Violation(3, "a wrong answer", "<script>alert(1)</script>")]))
    assert "<script>" not in text
    assert "cut &lt;b&gt;&amp;" in text
    assert "something was wrong" in text


def test_what_could_not_be_tried_is_named() -> None:
    text = page(made(left_out={"power lost": "needs root", "disk full: kafka": "needs root"}))
    assert "Left out on this machine" in text
    assert "needs root: power lost, disk full: kafka" in text


def test_a_run_without_shots_or_samples_has_a_page_too(tmp_path: Path) -> None:
    write_report(ProgrammeResult(1), tmp_path / "page.html")
    assert "seed 1" in (tmp_path / "page.html").read_text()
    assert "seed 1" in (tmp_path / "page.md").read_text()


def test_the_readmes_tables_say_what_must_be_nought() -> None:
    text = markdown(made(), {"dedup off": True, "fencing | off": False})
    assert "seed 5, 1.3 minutes: **nothing was wrong**" in text
    assert "| kill | 4 | 400 | 10 | 2.5 s |" in text
    for name in ("wrong answers", "acknowledged events lost", "events counted twice"):
        assert f"| {name} | 0 |" in text
    assert "| sabotages caught | **1 of 2** |" in text
    assert "| dedup off | caught |\n| fencing \\| off | NOT CAUGHT |\n" in text


def test_without_sabotages_the_readme_claims_none() -> None:
    assert "caught" not in markdown(made())


def test_tables_of_a_wrong_run_say_so() -> None:
    text = markdown(made(wrong=[Violation(3, "a wrong answer", "5")], lost=["e1", "e2"]))
    assert "**something was wrong**" in text
    assert "| wrong answers | **1** |\n| acknowledged events lost | **2** |" in text


def test_tables_are_written_beside_the_page_and_known_again(tmp_path: Path) -> None:
    write_report(made(), tmp_path / "page.html", {"dedup off": True})
    path = tables_path(tmp_path / "page.html")
    assert path == tmp_path / "page.md"
    assert path.read_text().endswith(markdown(made(), {"dedup off": True}))
    assert is_tables(path)
    path.write_text("# My notes\n")
    assert not is_tables(path)


def with_errors(*errors: int) -> ProgrammeResult:
    """A run with a sample every two seconds."""
    return made(samples=[Sample(2.0 * n, 0, {}, False, errors=each) for n, each in enumerate(errors, start=1)])


def row_of_errors(result: ProgrammeResult) -> str:
    """What the picture has between the names of that row and of the next."""
    return picture(result).split("errors a second</text>")[1].split("recovery, s</text>")[0]


@pytest.mark.parametrize(
    ("errors", "scale"), [((0, 24, 0), "12"), ((0, 3), "1.5"), ((1,), "0.5"), ((90_000,), "45,000")]
)
def test_errors_are_drawn_by_the_second_on_a_scale_of_their_own(errors: tuple[int, ...], scale: str) -> None:
    row = row_of_errors(with_errors(*errors))
    assert f">{scale}</text>" in row
    assert "<polyline" in row


def test_a_run_without_errors_has_a_line_at_nought() -> None:
    quiet = made(shots=[Shot("kill", "kill", 1, 2, 3, 1.0)])
    assert "<polyline" in row_of_errors(quiet)


def test_errors_that_were_not_sampled_are_not_drawn_as_none() -> None:
    assert "not sampled" in row_of_errors(made())


def test_a_fault_that_does_not_wait_for_recovery_shows_its_errors() -> None:
    shots = [Shot("pause", "pause", 1, 2, 9, None, errors=1200), Shot("kill", "kill", 3, 4, 9, 5.0)]
    text = picture(made(shots=shots, samples=[Sample(2, 0, {}, False, errors=1200), Sample(4, 0, {}, False)]))
    assert "pause, 0:01: recovered with the next, 1,200 requests refused" in text
    assert "kill, 0:03: recovery 5.0 s</title>" in text
    assert ">600</text>" in text


def test_results_from_before_errors_were_sampled_are_read(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with_errors(3).write(path)
    assert [each.errors for each in read_result(path).samples] == [3]
    old = json.loads(path.read_text())
    del old["samples"][0]["errors"]
    path.write_text(json.dumps(old))
    assert [each.errors for each in read_result(path).samples] == [0]


def test_each_sample_counts_the_errors_since_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = Counter({"503": 2})
    seen = SimpleNamespace(cut={}, is_degraded=False)
    parts: Any = (None, SimpleNamespace(seen=seen, refusals=refusals), SimpleNamespace(ends=dict))
    sampler = Sampler(*parts, began=0.0)
    steps = iter([{}, {"503": 1, "0": 4}, {}])  # what is refused before each look

    def wait(_seconds: float) -> bool:
        refusals.update(more := next(steps, {"end": 1}))
        return "end" in more

    monkeypatch.setattr(sampler._stopping, "wait", wait)
    monkeypatch.setattr(sampler, "_measure", lambda: ({}, {}))
    monkeypatch.setattr(sampler, "_on_disk", dict)
    sampler._run()
    assert [each.errors for each in sampler.samples] == [2, 5, 0]


def failed(count: int) -> ProgrammeResult:
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
    assert '<b class="">2</b><span>not injected</span>' in text
    assert "fill 1: &lt;no disk&gt;" in text
    assert "fill 1, 1:10: not injected" in text
    assert dict(summary(result))["not injected"] == "2"
    assert findings(result) == []
    assert "not injected: fill 1: <no disk>" in remarks(result)


def test_a_run_that_tried_too_little_says_so() -> None:
    result = failed(3)
    reason = "too little was tried: 3 of 8 faults were not injected, and at most 33% may be"
    assert not result.is_right
    assert findings(result) == [f"{reason}: fill 0: <no disk>; fill 1: <no disk>; fill 2: <no disk>"]
    assert dict(summary(result))["not injected"] == "3, which is too many"
    text = page(result)
    assert 'Fault programme: <b class="bad">too little was tried</b>' in text
    assert f"<li>{reason}</li>" in text
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
