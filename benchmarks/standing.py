"""How Tidemark stands beside every peer and floor that was measured, worst first: the head of the benchmarks' page.

A comparison is made of figures of one run. A result that lacks them is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

Result = dict[str, Any]
LEVEL = 1.05
"""Up to here two figures count as equal."""


@dataclass(frozen=True)
class Comparison:
    """Tidemark takes `times` as long as another, or does so many times less in the same time."""

    what: str
    ours: str
    other: str
    times: float


def section(results: dict[str, Result]) -> str:
    """The head of the page, as markdown."""
    found = sorted(comparisons(results), key=lambda each: -each.times)
    behind = [each for each in found if each.times > LEVEL]
    ahead = [each for each in reversed(found) if each.times <= LEVEL]
    return (
        f"## Where Tidemark is behind\n\n"
        "Tidemark takes so many times as long as the other, or does so many times less in the same time. Floors do "
        "less than Tidemark by definition: bare producers, routes that answer a constant, Spark into nothing. Peers "
        "compute the same view, most without removing duplicates, checking files or publishing atomically; the "
        f"sections below say what each leaves out.\n\n{_table(behind)}\n\n"
        f"## Where Tidemark is level or ahead\n\n{_table(ahead)}\n"
    )


def comparisons(results: dict[str, Result]) -> list[Comparison]:
    """All that the results allow."""
    found: list[Comparison] = []
    for name, compare in COMPARED.items():
        if name in results:
            found.extend(_kept(compare(results[name])))
    return found


def _kept(made: Iterator[Comparison]) -> list[Comparison]:
    """What can be compared: an older result may lack a figure, and a peer may not have got through."""
    found: list[Comparison] = []
    with suppress(KeyError, IndexError, ZeroDivisionError, statistics.StatisticsError):
        found.extend(iter(made))
    return found


def _speed(result: Result) -> Iterator[Comparison]:
    ours, *_ = result["latency_ms"] or [""]
    rate, (ours_ms, _) = next(iter(result["latency_ms"][ours].items()))
    for name, latency in result["latency_ms"].items():
        if name != ours:
            other_ms = latency[rate][0]
            yield Comparison(
                f"latency at {int(rate):,} events/s, median", f"{ours_ms:.0f} ms", f"{name}: {other_ms:.0f} ms",
                ours_ms / other_ms,
            )  # fmt: skip
    for name, drained in result["drained"].items():
        if name != ours:
            yield Comparison(
                "a backlog of the speed layer", f"{result['drained'][ours]:,.0f} events/s",
                f"{name}: {drained:,.0f} events/s", drained / result["drained"][ours],
            )  # fmt: skip


def _batch(result: Result) -> Iterator[Comparison]:
    medians = {name: statistics.median(seconds) for name, seconds in result["seconds"].items() if seconds}
    run, view = medians["Tidemark, a whole run"], medians["Tidemark, the view"]
    events = f"{result['events']:,} events"
    for name, seconds in medians.items():
        if name.startswith(("ClickHouse", "DuckDB", "PySpark by hand, duplicates")):
            yield Comparison(
                f"a whole batch run of {events}", f"{run:.1f} s", f"{name}: {seconds:.1f} s", run / seconds
            )
    by_hand = medians["PySpark by hand"]
    what = f"one batch view of {events}, without duplicates, checks, index"
    yield Comparison(what, f"{view:.1f} s", f"PySpark by hand: {by_hand:.1f} s", view / by_hand)


def _archiver(result: Result) -> Iterator[Comparison]:
    rates = {name: statistics.median(each) for name, each in result["rates"].items()}
    ours, floor = rates["archiver, whole"], rates["read into nothing (the floor)"]
    yield Comparison(
        "archiving", f"{ours:,.0f} events/s", f"Spark from Kafka into nothing: {floor:,.0f} events/s", floor / ours
    )


def _formats(result: Result) -> Iterator[Comparison]:
    for name, rates in result["rates"].items():
        of = {what: statistics.median(each) for what, each in rates.items()}
        floor = of["read into nothing"]
        for step, what in (("archived", "archiving"), ("applied by the speed layer", "a backlog of the speed layer")):
            ours, other = f"{of[step]:,.0f} records/s", f"Spark from Kafka into nothing: {floor:,.0f} records/s"
            yield Comparison(f"{what}, `{name}`", ours, other, floor / of[step])


def _collector(result: Result) -> Iterator[Comparison]:
    rates = result["events_per_second"]
    ours = max(rate for name, rate in rates.items() if name.startswith("collector"))
    for name in ("bare confluent-kafka", "bare kafka-python"):
        yield Comparison(
            "collecting, batches of 500", f"{ours:,} events/s", f"{name}: {rates[name]:,} events/s", rates[name] / ours
        )


def _serving(result: Result) -> Iterator[Comparison]:
    contest = {name: each["1"]["p50_ms"]["median"] for name, each in result["contest"].items()}
    floor, *questions = contest
    for question in questions:
        ours = contest[question]
        yield Comparison(
            question, f"{ours:.1f} ms", f"a constant route: {contest[floor]:.1f} ms", ours / contest[floor]
        )
        for engine, answers in result["engines"].items():
            other = answers[question]["p50_ms"]["median"]
            yield Comparison(question, f"{ours:.1f} ms", f"{engine}: {other:.1f} ms", ours / other)


def _history(result: Result) -> Iterator[Comparison]:
    newest = list(result["measured"].values())[-1]
    what = f"{newest['events']:,} rows of history until every answer holds them"
    for name, seconds in newest["floors_s"].items():
        ours = newest["complete_s"]
        yield Comparison(what, f"{ours:.0f} s", f"{name}: {seconds:.1f} s", ours / seconds)


def _alerts(result: Result) -> Iterator[Comparison]:
    ours, floor = result["latency_ms"]["kafka"]["p50"], result["floor_p50_ms"]
    yield Comparison("an alert, median", f"{ours:.0f} ms", f"an answer has the event: {floor:.0f} ms", ours / floor)


def _startup(result: Result) -> Iterator[Comparison]:
    ours, floor = result["up_s"]["median"], result["floor_s"]["median"]
    yield Comparison("start of Kafka and Redis", f"{ours:.1f} s", f"both by hand: {floor:.1f} s", ours / floor)


COMPARED: dict[str, Callable[[Result], Iterator[Comparison]]] = {
    "history": _history, "speed": _speed, "batch": _batch, "archiver": _archiver, "formats": _formats,
    "collector": _collector, "serving": _serving, "alerts": _alerts, "startup": _startup,
}  # fmt: skip


def _table(rows: list[Comparison]) -> str:
    head = "| what | Tidemark | beside | times as long |\n|---|---|---|---|"
    return "\n".join([head, *(f"| {each.what} | {each.ours} | {each.other} | {each.times:.2g} |" for each in rows)])
