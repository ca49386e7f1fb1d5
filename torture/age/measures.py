"""What is measured of an ageing installation, and what is declared of each figure.

A figure that grows with the nights has a median of its last third that is five times that of its first third: they lie
a sixth and five sixths of the way. So a factor of 2 finds growth as soon as it is half of the whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from infra.home import Home
from torture.age.installation import COMMITS, COMPACTED, EVENTS, KEPT_RUNS, AgeingInstallation, started
from torture.age.verdict import Declared, Growth

MB = 2**20
VIEWS, FILES_A_DAY = 2, 2
FILES = VIEWS * FILES_A_DAY
"""Data files that a night adds to the views: a new day for each view, written by two tasks."""
KEPT = KEPT_RUNS + 1
"""Runs of which there are manifests: those that are kept, and one that failed."""
SEGMENTS = 2 * COMMITS / 500
"""Segments of sealed commits a night: each time that 500 commits are sealed, a full one and the rest."""
RUNS = 1.2
"""Entries of the publish log a night: a run that adopts the generation of failed ones is followed by another."""
NOISE_S = 0.5
"""Processor seconds by which medians of the same work differ: compilation, garbage collection."""

DURATIONS = {
    "run_s": Declared(
        Growth.LINEAR, "a run checks the files of all days, at most 1 ms each", slope=0.001 * FILES, slack=NOISE_S
    ),
    **{
        f"{name}_s": Declared(Growth.FLAT, why, factor=2.0, slack=NOISE_S)
        for name, why in {
            "archive": "an append reads Delta's log from its newest checkpoint on",
            "micro_batch": "a micro-batch reads the states that it changes",
            "upkeep": "only what is new is sealed and merged",
            "archiver_open": "sealed commits are read as a summary",
            "speed_open": "Redis has what the writer needs, for a horizon of two days",
            "serving_open": "indexes are mapped, not read",
            "archiver_start": "a process of its own reads the summary and the newest commits",
            "speed_start": "a process of its own reads Redis and the summary",
            "serving_start": "a process of its own maps the indexes, and parses the newest manifest",
        }.items()
    },
}
COUNTS = {
    "python_mb": Declared(
        Growth.LINEAR, "the truth about all events is in this process, 4 kB each", slope=0.004 * EVENTS, slack=60
    ),
    "jvm_mb": Declared(Growth.FLAT, "the heap grows to its limit, not with the nights", 1.5, 300),
    "archiver_start_mb": Declared(Growth.FLAT, "the summary holds a few lines", 1.25, 20),
    "speed_start_mb": Declared(Growth.FLAT, "seen ids of two days", 1.25, 20),
    "serving_start_mb": Declared(
        Growth.LINEAR, "the newest manifest names the files of all days, 5 kB each", slope=0.005 * FILES, slack=20
    ),
    "redis_keys": Declared(
        Growth.BOUNDED, "generations are retired: at most one more, with three keys an event", slack=3 * EVENTS + 10
    ),
    "redis_mb": Declared(Growth.FLAT, "the same", 1.5, 1),
    "handles": Declared(Growth.BOUNDED, "files of old runs are closed; sockets come and go", slack=20),
    "threads": Declared(Growth.BOUNDED, "parts that end leave none; pools of Spark's callbacks come and go", slack=15),
}  # fmt: skip


def files_and_bytes(name: str, files: Declared, size: Declared) -> dict[str, Declared]:
    """Of one folder."""
    return {f"{name}_files": files, f"{name}_kb": size}


def _linear(why: str, slope: float, slack: float = 0.0) -> Declared:
    return Declared(Growth.LINEAR, why, slope=slope, slack=slack)


BOUNDED = Declared(Growth.BOUNDED, "those of runs that are not kept are removed", slack=KEPT * FILES)
FOLDERS = {
    **files_and_bytes(
        "master_data",
        Declared(
            Growth.BOUNDED, "merged, and removed two nights later; each has a checksum", slack=2 * COMPACTED
        ),
        _linear("all events are kept, 0.3 kB each; twice while merged files stay", 2 * 0.3 * EVENTS, slack=100),
    ),
    **files_and_bytes(
        "master_log",
        Declared(Growth.BOUNDED, "what is sealed leaves the log, up to a night's commits later", slack=2 * COMMITS),
        Declared(Growth.FLAT, "the same", 2.0, 500),
    ),
    **files_and_bytes(
        "master_proofs",
        _linear("two segments each time that 500 commits are sealed", SEGMENTS, slack=4),
        _linear("every commit stays provable, 0.25 kB packed", 0.25 * COMMITS, slack=500),
    ),
    **files_and_bytes(
        "view_data",
        _linear("two files for each day of a view, each with a checksum", 2 * FILES, slack=KEPT * FILES),
        _linear("groups of all days are kept, at most 8 kB a file with its footer", 8 * FILES, slack=200),
    ),
    **files_and_bytes(
        "view_log",
        Declared(Growth.BOUNDED, "commits of 14 days and 20 runs, twice while a view's old table stays", slack=80),
        _linear("three checkpoints list the files of all days, 0.5 kB each", 3 * 0.5 * FILES, slack=500),
    ),
    **files_and_bytes(
        "indexes",
        BOUNDED,
        _linear("groups of all days, 1 kB each in as many versions as runs are kept", KEPT * 1.2 * EVENTS, slack=1000),
    ),
    **files_and_bytes(
        "ids", BOUNDED, _linear("a hash of each event, in each run that is kept", KEPT * 0.05 * EVENTS, slack=100)
    ),
    **files_and_bytes(
        "manifests",
        BOUNDED,
        _linear("each names the files of all days, 1.2 kB with Delta's action", KEPT * 1.2 * FILES, slack=100),
    ),
    **files_and_bytes(
        "publish_log",
        _linear("an entry for each run", RUNS, slack=2),
        _linear("an entry has its cut, its views and the entry before: 1 kB", RUNS, slack=5),
    ),
    **files_and_bytes(
        "definitions",
        _linear("two files for each version of a view, which changes every 20 nights", 0.1, slack=2),
        _linear("3 kB for each version", 0.15, slack=6),
    ),
    **files_and_bytes(
        "rest_of_home",
        Declared(Growth.BOUNDED, "locks, logs and status files", slack=12),
        Declared(Growth.FLAT, "logs are rotated", 1.5, 500),
    ),
}  # fmt: skip
DECLARED = {**DURATIONS, **COUNTS, **FOLDERS}


def measure(installation: AgeingInstallation) -> dict[str, float]:
    """All but the durations, now."""
    process = psutil.Process()
    java = [child for child in process.children(recursive=True) if child.name() == "java"]
    client = started(installation.writer).speed_views.client
    memory: dict[str, float] = client.info("memory")
    found = {
        "python_mb": process.memory_info().rss / MB,
        "jvm_mb": sum(child.memory_info().rss for child in java) / MB,
        "redis_keys": float(client.dbsize()),
        "redis_mb": memory["used_memory"] / MB,
        "handles": float(process.num_fds() + sum(child.num_fds() for child in java)),
        "threads": float(process.num_threads()),
    }
    return found | _folders(installation)


def _folders(installation: AgeingInstallation) -> dict[str, float]:
    sizes: dict[str, list[int]] = {name.removesuffix("_files"): [] for name in FOLDERS if name.endswith("_files")}
    scratch = Home(installation.settings.home).spark  # goes with Spark's process, which here never ends
    for path, size in _files(installation.settings.home):
        if path.is_relative_to(scratch):
            continue
        sizes[_part(installation, path)].append(size)
    found: dict[str, float] = {}
    for name, each in sizes.items():
        found[f"{name}_files"], found[f"{name}_kb"] = float(len(each)), sum(each) / 1024
    return found


def _part(installation: AgeingInstallation, path: Path) -> str:
    folder, table = installation.folder, installation.table
    is_log = "_delta_log" in path.parts
    if path.is_relative_to(table):
        return "master_log" if is_log else "master_data"
    if path.is_relative_to(table.parent):
        return "master_proofs"
    if path.is_relative_to(folder.tables):
        return "view_log" if is_log else "view_data"
    named = {
        "indexes": folder.indexes,
        "ids": folder.ids,
        "manifests": folder.runs,
        "publish_log": folder.root / "publish",
        "definitions": folder.definitions,
    }
    return next((name for name, place in named.items() if path.is_relative_to(place)), "rest_of_home")


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            try:
                yield path, path.stat().st_size
            except FileNotFoundError:  # Spark's scratch files come and go
                continue
