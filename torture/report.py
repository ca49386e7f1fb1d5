"""The report of a run: one HTML page with a timeline, and tables for a README. It needs no outside resources."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

from torture.result import MAX_NOT_INJECTED, ProgrammeResult, Shot
from torture.timeline import picture

STYLE = """
:root { color-scheme: light dark; --ink: #1b2733; --dim: #64748b; --line: #d9e0e7; --paper: #fff; --good: #15803d;
  --bad: #b91c1c; --soft: #f4f7fa; --lag: #0369a1; --err: #c2410c; --deg: #fde68a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e2e8f0; --dim: #94a3b8; --line: #334155; --paper: #0f172a;
  --soft: #1e293b; --good: #4ade80; --bad: #f87171; --lag: #38bdf8; --err: #fb923c; --deg: #6b6a0f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.sub { color: var(--dim); margin: .2rem 0 1.2rem; }
.figures { display: flex; flex-wrap: wrap; gap: .8rem; }
.figure { background: var(--soft); border-radius: .5rem; padding: .6rem 1rem; min-width: 7rem; }
.figure b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums; }
.figure span { color: var(--dim); font-size: .85rem; }
.good { color: var(--good); } .bad { color: var(--bad); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--dim); font-weight: 600; }
.text { text-align: left; white-space: normal; }
.wide { overflow-x: auto; }
svg { width: 100%; min-width: 44rem; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--dim); }
.legend { color: var(--dim); font-size: .85rem; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: .3rem 0; }
.legend i { display: inline-block; width: .9rem; height: .6rem; border-radius: 2px; margin-right: .4rem; }
details { margin: .4rem 0; } summary { cursor: pointer; }
.wrong li { overflow-wrap: anywhere; margin: .4rem 0; }
"""

LEGEND = (
    '<div class="legend">'
    '<span><i style="background: var(--err)"></i>fault active</span>'
    '<span><i style="background: var(--err); opacity: .35"></i>until recovered</span>'
    '<span><i style="background: var(--dim)"></i>not injected</span>'
    '<span><i style="background: var(--deg)"></i>answers degraded, and marked so</span>'
    '<span><i style="background: var(--bad)"></i>something wrong, or not recovered</span></div>'
)


class KindSummary(NamedTuple):
    """The shots of one kind of fault. Percentiles are of those that were injected."""

    kind: str
    shots: int
    comparisons: int
    errors: int
    p50_s: float | None
    p95_s: float | None
    not_injected: int
    unrecovered: int


def by_kind(shots: Iterable[Shot]) -> list[KindSummary]:
    """One line for each kind of fault that was tried, by name."""
    found: dict[str, list[Shot]] = {}
    for shot in shots:
        found.setdefault(shot.kind, []).append(shot)
    return [_line(kind, found[kind]) for kind in sorted(found)]


def _line(kind: str, shots: list[Shot]) -> KindSummary:
    times = [shot.recovery_s for shot in shots if shot.recovery_s is not None and shot.is_injected]
    return KindSummary(
        kind,
        len(shots),
        sum(shot.comparisons for shot in shots),
        sum(shot.errors for shot in shots),
        percentile(times, 50),
        percentile(times, 95),
        sum(not shot.is_injected for shot in shots),
        sum(shot.recovered_at is None for shot in shots),
    )


def percentile(values: list[float], percent: int) -> float | None:
    """A percentile, interpolated: [1, 2, 3], 50 -> 2. None without values."""
    if not values:
        return None
    return values[0] if len(values) == 1 else quantiles(values, n=100, method="inclusive")[percent - 1]


def idle_reason(result: ProgrammeResult) -> str:
    """Says that too few faults were injected to prove anything; empty where enough were."""
    if not result.is_idle:
        return ""
    return (
        f"too little was tried: {len(result.not_injected):,} of {len(result.shots):,} faults were not injected, "
        f"and at most {MAX_NOT_INJECTED:.0%} may be"
    )


def markdown(result: ProgrammeResult, sabotages: Mapping[str, bool] | None = None) -> str:
    """The tables for a README: what counts, recovery by kind, and the sabotages where they are known."""
    verdict, _ = _verdict(result)
    figures = [(name, value if is_good else f"**{value}**") for name, value, is_good in _figures(result, sabotages)]
    tables = [
        f"Fault programme, seed {result.seed}, {result.seconds / 60:.1f} minutes: **{verdict}**.\n",
        _markdown_table(("what was found", ""), figures),
        _markdown_table(COLUMNS, map(cells, by_kind(result.shots))),
    ]
    if sabotages is not None:
        tables.append(_markdown_table(SABOTAGE_COLUMNS, _sabotage_rows(sabotages)))
    return "\n".join(tables)


def _markdown_table(names: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """The first column to the left, the others to the right: ("a", "b"), [("x", "1")] -> three lines."""
    lines = [names, ("---", *["--:"] * (len(names) - 1)), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


MARK = "<!-- Written by `tidemark torture --report`. -->"
SABOTAGE_COLUMNS = ("what was broken on purpose", "")
COLUMNS = (
    "kind of fault",
    "shots",
    "values compared",
    "requests refused",
    "recovery p50",
    "p95",
    "not injected",
    "not recovered",
)


def cells(line: KindSummary) -> tuple[str, ...]:
    """A line as texts, one for each of COLUMNS."""
    counted = (f"{each:,}" for each in (line.shots, line.comparisons, line.errors))
    return line.kind, *counted, _s(line.p50_s), _s(line.p95_s), f"{line.not_injected:,}", f"{line.unrecovered:,}"


def write_report(result: ProgrammeResult, path: Path, sabotages: Mapping[str, bool] | None = None) -> None:
    """The page, and the tables beside it."""
    path.write_text(page(result, sabotages), encoding="utf-8")
    tables_path(path).write_text(f"{MARK}\n\n{markdown(result, sabotages)}", encoding="utf-8")


def tables_path(page_path: Path) -> Path:
    """Where the tables of a page go: page.html -> page.md."""
    return page_path.with_suffix(".md")


def is_tables(path: Path) -> bool:
    """Whether a file is one that `write_report` wrote, and so may be written again."""
    with path.open("rb") as file:
        return file.read(len(MARK)) == MARK.encode()


def page(result: ProgrammeResult, sabotages: Mapping[str, bool] | None = None) -> str:
    """The page's text."""
    verdict, colour = _verdict(result)
    parts = [
        f'<h1>Fault programme: <b class="{colour}">{verdict}</b></h1>',
        f'<p class="sub">seed {result.seed} · began {escape(result.began)} · {result.seconds / 60:.1f} minutes · '
        f"{result.answers:,} answers, {result.degraded:,} of them degraded and right · {result.sent:,} records sent, "
        f"{result.duplicates:,} duplicates, {result.poison:,} poison · {result.runs} batch runs</p>",
        _figure_boxes(result, sabotages),
        "<h2>Timeline</h2>",
        f'<div class="wide">{picture(result)}</div>',
        LEGEND,
        "<h2>By kind of fault</h2>",
        _kinds(result),
        _findings(result),
        _sabotages(sabotages),
        _not_injected(result),
        _not_tried(result),
        _left_out(result),
        _shots(result),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Tidemark: fault programme</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body>'
        f"{''.join(parts)}</body></html>\n"
    )


def _verdict(result: ProgrammeResult) -> tuple[str, str]:
    """In words, and as a class of STYLE."""
    if result.is_right:
        return "nothing was wrong", "good"
    return "something was wrong" if broken_promises(result) else "too little was tried", "bad"


def _figures(result: ProgrammeResult, sabotages: Mapping[str, bool] | None) -> list[tuple[str, str, bool]]:
    """The main figures: name, value, whether it is as it must be."""
    wrong = [each for each in result.wrong if each.what == "a wrong answer"]
    counted = len(wrong) + len(result.lost) + len(result.doubled) + len(result.unrecovered)
    others = len(broken_promises(result)) - counted
    figures = [
        ("faults tried", f"{len(result.shots):,}", True),
        ("not injected", f"{len(result.not_injected):,}", not result.is_idle),
        ("values compared", f"{result.comparisons:,}", True),
        ("wrong answers", f"{len(wrong):,}", not wrong),
        ("acknowledged events lost", f"{len(result.lost):,}", not result.lost),
        ("events counted twice", f"{len(result.doubled):,}", not result.doubled),
        ("not recovered from", f"{len(result.unrecovered):,}", not result.unrecovered),
        ("other findings", f"{others:,}", not others),
    ]
    if sabotages is not None:
        caught = sum(sabotages.values())
        figures.append(("sabotages caught", f"{caught} of {len(sabotages)}", caught == len(sabotages)))
    return figures


def _figure_boxes(result: ProgrammeResult, sabotages: Mapping[str, bool] | None) -> str:
    boxes = [
        f'<div class="figure"><b class="{"" if is_good else "bad"}">{value}</b><span>{name}</span></div>'
        for name, value, is_good in _figures(result, sabotages)
    ]
    return f'<div class="figures">{"".join(boxes)}</div>'


def _kinds(result: ProgrammeResult) -> str:
    return _table(COLUMNS, map(cells, by_kind(result.shots)))


def broken_promises(result: ProgrammeResult) -> list[str]:
    """Everything that was wrong with the platform, a line each."""
    return [
        *(f"{wrong.at:.0f} s: {wrong.what}: {wrong.detail}" for wrong in result.wrong),
        *(f"lost: {each}" for each in result.lost),
        *(f"twice: {each}" for each in result.doubled),
        *(f"poison: {each}" for each in result.poison_missing),
        *(f"cut went back: {each}" for each in result.cut_regressions),
        *(f"not recovered: {each}" for each in result.unrecovered),
        *(f"quarantined: {each}" for each in result.quarantined),
    ]


def _findings(result: ProgrammeResult) -> str:
    found = [*broken_promises(result), *filter(None, [idle_reason(result)])]
    if not found:
        return ""
    listed = "".join(f"<li>{escape(each)}</li>" for each in found)
    return f'<h2 class="bad">What was wrong</h2><ul class="wrong">{listed}</ul>'


def _sabotages(sabotages: Mapping[str, bool] | None) -> str:
    if sabotages is None:
        return ""
    return "<h2>Deliberately broken builds</h2>" + _table(SABOTAGE_COLUMNS, _sabotage_rows(sabotages))


def _sabotage_rows(sabotages: Mapping[str, bool]) -> list[tuple[str, str]]:
    return [(name, "caught" if is_caught else "NOT CAUGHT") for name, is_caught in sabotages.items()]


def _not_injected(result: ProgrammeResult) -> str:
    """Faults that failed themselves: these shots prove nothing."""
    if not result.not_injected:
        return ""
    listed = "".join(f"<li>{escape(each)}</li>" for each in result.not_injected)
    reason = "These faults failed themselves; the installation may have been unharmed."
    return f"<h2>Not injected</h2><p>{reason}</p><ul>{listed}</ul>"


def _not_tried(result: ProgrammeResult) -> str:
    if not result.not_tried:
        return ""
    return f"<h2>Not tried for lack of time</h2><p>{escape(', '.join(result.not_tried))}</p>"


def _left_out(result: ProgrammeResult) -> str:
    """Faults that this machine cannot inject, by reason."""
    if not result.left_out:
        return ""
    reasons: dict[str, list[str]] = {}
    for name, reason in result.left_out.items():
        reasons.setdefault(reason, []).append(name)
    listed = "".join(f"<li>{escape(reason)}: {escape(', '.join(names))}</li>" for reason, names in reasons.items())
    return f"<h2>Left out on this machine</h2><ul>{listed}</ul>"


def _shots(result: ProgrammeResult) -> str:
    rows = [
        (
            shot.fault,
            shot.kind,
            f"{shot.at:.0f} s",
            _s(shot.recovery_s) if shot.is_injected else "not injected",
            f"{shot.comparisons:,}",
            f"{shot.errors:,}",
            shot.note,
        )
        for shot in result.shots
    ]
    table = _table(("fault", "kind", "at", "recovery", "compared", "refused", "note"), rows, texts=(0, 1, 6))
    return f"<details><summary>All {len(rows)} shots</summary>{table}</details>"


def _table(names: Iterable[str], rows: Iterable[Iterable[str]], texts: Container[int] = (0,)) -> str:
    """Figures stand to the right and are never broken; the columns `texts` stand to the left."""
    body = "".join(_row("td", row, texts) for row in rows)
    table = f"<table><thead>{_row('th', names, texts)}</thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _row(tag: str, row: Iterable[str], texts: Container[int]) -> str:
    begins = {True: f'<{tag} class="text">', False: f"<{tag}>"}
    return "<tr>" + "".join(f"{begins[n in texts]}{escape(cell)}</{tag}>" for n, cell in enumerate(row)) + "</tr>"


def _s(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.1f} s"
