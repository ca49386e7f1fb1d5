"""What benchmarks share: a description of the machine, medians with their spread, and one generated README."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aims
import psutil
import standing

from infra.java.find import find_java
from infra.settings import load_settings

HERE = Path(__file__).parent
RESULTS = HERE / "results"
HEADING = """# Benchmarks

<!-- Written by `make bench`. Change the benchmarks, not this page. -->

Each benchmark measures against a floor or a peer in the same run, on the same machine: figures of different machines or
days are not compared. `make bench` runs them all and writes this page from `benchmarks/results`.

Peers are run as their own users would: DuckDB and ClickHouse in process, from the packages that `requirements.lock`
pins; Kafka Streams and Flink from the jars that `benchmarks/peers` locks (`bench_speed.py --peers`). Tidemark needs
none of them.
"""
LOAD_AT_START = os.getloadavg()[0]
"""Of the machine, when the benchmark was started: what others did."""


def machine() -> dict[str, str]:
    """What a figure depends on."""
    java = find_java(load_settings().java_home)
    return {
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "Java": str(java.major),
        "load when it began": f"{LOAD_AT_START:.1f}",
    }


def load_now() -> dict[str, str]:
    """The load at the end, which the benchmark itself has a part in."""
    return {"at its end": f"{os.getloadavg()[0]:.1f}"}


def median(values: list[float]) -> dict[str, float]:
    """The middle value, with the least and the greatest beside it."""
    return {
        "median": round(statistics.median(values), 3),
        "least": round(min(values), 3),
        "most": round(max(values), 3),
        "runs": len(values),
    }


@contextmanager
def peak_memory() -> Iterator[list[float]]:
    """The most memory, in MB, of this process's busiest child while the block runs."""
    peak, done = [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            for child in psutil.Process().children(recursive=True):
                try:
                    peak[0] = max(peak[0], child.memory_info().rss / 2**20)
                except psutil.Error:
                    continue

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def table(*rows: tuple[str, ...]) -> str:
    """A markdown table; the first row is its head."""
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def seconds(measured: dict[str, float]) -> str:
    """Like `4.21 s (4.10 – 4.60)`."""
    return f"{measured['median']:.2f} s ({measured['least']:.2f} – {measured['most']:.2f})"


def write(name: str, title: str, result: dict[str, Any], text: str) -> None:
    """Keep one benchmark's result, and rewrite the README from all results that carry a text."""
    RESULTS.mkdir(exist_ok=True)
    kept = {"title": title, "machine": machine() | load_now(), **result, "text": text}
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (HERE / "README.md").write_text(readme(), encoding="utf-8")
    sys.stdout.write(f"{title}\n\n{text}\n")


def read_results() -> dict[str, dict[str, Any]]:
    """By the name of a benchmark: what it wrote last."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    return {name: kept for name, kept in found.items() if isinstance(kept, dict)}


def readme() -> str:
    """The page, from the results: how Tidemark stands beside all others and beside its aims, then the benchmarks."""
    results = read_results()
    sections = [HEADING, standing.section(results), aims.section(results)]
    for kept in results.values():
        if "text" in kept:
            machine_text = " · ".join(f"{name} {value}" for name, value in kept["machine"].items())
            sections.append(f"## {kept['title']}\n\n{machine_text}\n\n{kept['text']}\n")
    return "\n".join(sections)


if __name__ == "__main__":
    (HERE / "README.md").write_text(readme(), encoding="utf-8")
