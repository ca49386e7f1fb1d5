"""The timeline of a run as SVG: faults by kind, lag, cuts, errors, and recovery times."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from torture.fault import KINDS
from torture.result import ProgrammeResult, Sample, Shot

WIDTH, LEFT, RIGHT = 1100, 112, 12
ROW, PLOT, GAP = 17, 90, 34
TICKS_S = (10, 30, 60, 120, 300, 600, 1800, 3600)


def picture(result: ProgrammeResult) -> str:
    """All of it, one above the other, on one axis of time."""
    end = max([result.seconds, 1.0, *(shot.recovered_at or shot.healed_at for shot in result.shots)])
    kinds: list[str] = [kind for kind in KINDS if any(shot.kind == kind for shot in result.shots)]
    faults_end = 18 + ROW * max(len(kinds), 1)
    lag_top, cut_top, errors_top, recovery_top = (faults_end + GAP + place * (PLOT + GAP) for place in range(4))
    height = recovery_top + PLOT + 26
    parts = [
        *_degraded(result.samples, end, height - 22),
        *_axis(end, height),
        *_faults(result.shots, kinds, end),
        *_plot("events behind", lag_top, [(s.at, s.lag_events) for s in result.samples], end, "var(--lag)"),
        *_plot(
            "records in answers", cut_top, [(s.at, sum(s.cut.values())) for s in result.samples], end, "var(--good)"
        ),
        *_plot("errors a second", errors_top, _error_rates(result), end, "var(--err)"),
        *_bars("recovery, s", recovery_top, result.shots, end),
        *_wrong(result, end, height - 22),
    ]
    label = "Faults by kind, events behind, records in answers, errors a second, and recovery times over the run"
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _error_rates(result: ProgrammeResult) -> list[tuple[float, float]]:
    """When, and how many errors a second since the sample before; none for a run whose samples lack them."""
    samples = result.samples
    if not any(sample.errors for sample in samples) and any(shot.errors for shot in result.shots):
        return []  # a file from before they were sampled: a line at nought would be a lie
    times = [0.0, *(sample.at for sample in samples)]
    return [(each.at, each.errors / max(each.at - since, 0.01)) for since, each in zip(times, samples, strict=False)]


def _x(at: float, end: float) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * at / end, 1)


def _axis(end: float, height: float) -> Iterator[str]:
    step = next((tick for tick in TICKS_S if end / tick <= 14), 7200)
    for at in range(0, int(end) + 1, step):
        x = _x(at, end)
        yield f'<line x1="{x}" y1="8" x2="{x}" y2="{height - 20}" stroke="var(--line)"/>'
        yield f'<text x="{x}" y="{height - 5}" text-anchor="middle">{_clock(at)}</text>'


def _faults(shots: list[Shot], kinds: list[str], end: float) -> Iterator[str]:
    """Dark while it is there, light until all was well again; grey where it was not injected."""
    for place, kind in enumerate(kinds):
        y = 14 + ROW * place
        yield f'<text x="{LEFT - 8}" y="{y + 10}" text-anchor="end">{kind}</text>'
        for shot in shots:
            if shot.kind != kind:
                continue
            x, healed = _x(shot.at, end), _x(shot.healed_at, end)
            well = _x(shot.recovered_at if shot.recovered_at is not None else end, end)
            refused = f", {shot.errors:,} requests refused" if shot.errors else ""
            title = f"<title>{escape(shot.fault)}, {_clock(shot.at)}: {_outcome(shot)}{refused}</title>"
            colour = _colour(shot)
            yield (
                f'<g>{title}<rect x="{x}" y="{y + 3}" width="{max(well - x, 2)}" height="7" rx="2" fill="{colour}" '
                f'opacity=".35"/><rect x="{x}" y="{y + 1}" width="{max(healed - x, 2)}" height="11" rx="2" '
                f'fill="{colour}"/></g>'
            )


def _colour(shot: Shot) -> str:
    if shot.recovered_at is None:
        return "var(--bad)"
    return "var(--err)" if shot.is_injected else "var(--dim)"


def _outcome(shot: Shot) -> str:
    had = "" if shot.is_injected else "not injected, "
    if shot.recovered_at is None:
        return f"{had}not recovered"
    return f"{had}recovered with the next" if shot.recovery_s is None else f"{had}recovery {shot.recovery_s} s"


def _plot(name: str, top: float, values: list[tuple[float, float]], end: float, colour: str) -> Iterator[str]:
    """A line below which it is filled."""
    most = max([value for _, value in values], default=0) or 1
    yield from _frame(name, top, _scale(most) if values else "")
    if not values:
        yield f'<text x="{LEFT + 8}" y="{top + PLOT - 8}">not sampled</text>'
        return
    points = [(_x(at, end), round(top + PLOT - PLOT * value / most, 1)) for at, value in _thinned(values)]
    line = " ".join(f"{x},{y}" for x, y in points)
    bottom = top + PLOT
    yield (
        f'<polygon points="{points[0][0]},{bottom} {line} {points[-1][0]},{bottom}" fill="{colour}" opacity=".15"/>'
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.4"/>'
    )


def _bars(name: str, top: float, shots: list[Shot], end: float) -> Iterator[str]:
    """Each shot's recovery; the requests that were refused meanwhile are in its title."""
    most = max([shot.recovery_s or 0 for shot in shots if shot.is_injected], default=0) or 1
    yield from _frame(name, top, _scale(most))
    for shot in shots:
        if shot.recovery_s is not None and shot.is_injected:
            size = round(PLOT * shot.recovery_s / most, 1)
            title = f"<title>{escape(shot.fault)}: {shot.recovery_s} s, {shot.errors} requests refused</title>"
            x = _x(shot.healed_at, end)
            yield (
                f'<g>{title}<line x1="{x}" y1="{top + PLOT}" x2="{x}" y2="{top + PLOT - size}" stroke="var(--dim)" '
                f'stroke-width="2"/><circle cx="{x}" cy="{top + PLOT - size}" r="2.5" '
                f'fill="var(--err)"/></g>'
            )


def _frame(name: str, top: float, most: str) -> Iterator[str]:
    yield f'<text x="{LEFT - 8}" y="{top - 8}" text-anchor="end">{name}</text>'
    yield f'<text x="{LEFT - 8}" y="{top + 9}" text-anchor="end">{most}</text>'
    yield f'<text x="{LEFT - 8}" y="{top + PLOT}" text-anchor="end">0</text>'
    bottom = top + PLOT
    yield f'<line x1="{LEFT}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}" stroke="var(--dim)" opacity=".6"/>'


def _scale(most: float) -> str:
    """As short as can be, and never nought: 17559.2 -> 17,559; 0.38 -> 0.38."""
    return f"{most:,.0f}" if most >= 10 else f"{most:.2g}"


def _degraded(samples: list[Sample], end: float, height: float) -> Iterator[str]:
    """Times in which answers said that they were degraded."""
    begin: float | None = None
    for sample in [*samples, Sample(end, 0, {}, False)]:
        if sample.degraded and begin is None:
            begin = sample.at
        elif not sample.degraded and begin is not None:
            x, width = _x(begin, end), max(_x(sample.at, end) - _x(begin, end), 1)
            size = f'x="{x}" y="8" width="{width}" height="{height - 8}"'
            title = "<title>answers degraded, and marked so</title>"
            yield f'<rect {size} fill="var(--deg)" opacity=".6">{title}</rect>'
            begin = None


def _wrong(result: ProgrammeResult, end: float, height: float) -> Iterator[str]:
    for each in result.wrong:
        x, title = _x(each.at, end), f"<title>{escape(each.what)}: {escape(each.detail[:200])}</title>"
        yield f'<line x1="{x}" y1="8" x2="{x}" y2="{height}" stroke="var(--bad)" stroke-width="2">{title}</line>'


def _thinned(values: list[tuple[float, float]], most: int = 1500) -> list[tuple[float, float]]:
    """Few enough points for a page: of each range the highest."""
    size = -(-len(values) // most)
    return [max(values[place : place + size], key=lambda each: each[1]) for place in range(0, len(values), size)]


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
