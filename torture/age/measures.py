"""What is measured of an ageing installation each night, and what is declared of each figure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from infra.home import Home
from torture.age.installation import COMMITS, EVENTS, AgeingInstallation, started
from torture.age.verdict import Declared, Growth

MB = 2**20
SEGMENTS = COMMITS / 500
"""Segments of sealed commits a night."""
QUIET = {"factor": 3.0, "slack": 0.5}
"""Of durations: the machine may do other things meanwhile."""

DURATIONS = {
    name: Declared(Growth.FLAT, why, **QUIET)
    for name, why in {
        "run_s": "a run goes on from the one before",
        "archive_s": "an append reads the newest checkpoint of the log",
        "micro_batch_s": "a micro-batch reads the states that it changes",
        "upkeep_s": "only what is new is sealed and merged",
        "archiver_start_s": "sealed commits are read as a summary",
        "speed_start_s": "Redis has what it needs",
        "serving_start_s": "indexes are mapped, not read",
    }.items()
}
COUNTS = {
    "python_mb": Declared(Growth.FLAT, "nothing is kept from night to night but the known events", 1.25, 40),
    "jvm_mb": Declared(Growth.FLAT, "the heap grows to its limit, not with the nights", 1.5, 300),
    "redis_keys": Declared(Growth.BOUNDED, "generations are retired after each run", slack=30),
    "redis_mb": Declared(Growth.FLAT, "the same", 1.5, 1),
    "handles": Declared(Growth.BOUNDED, "files of old runs are closed", slack=15),
    "threads": Declared(Growth.BOUNDED, "parts that end leave none", slack=15),
}


def files_and_bytes(name: str, files: Declared, size: Declared) -> dict[str, Declared]:
    """Of one folder."""
    return {f"{name}_files": files, f"{name}_kb": size}


BOUNDED = Declared(Growth.BOUNDED, "old ones are removed", slack=12)
FOLDERS = {
    **files_and_bytes(
        "master_data",
        Declared(Growth.BOUNDED, "merged, and removed a time after that", slack=6),
        Declared(Growth.LINEAR, "all events are kept", slope=0.3 * EVENTS),
    ),
    **files_and_bytes(
        "master_log",
        Declared(Growth.BOUNDED, "what is sealed leaves the log", slack=COMMITS),
        Declared(Growth.FLAT, "the same", 2.0, 500),
    ),
    **files_and_bytes(
        "master_proofs",
        Declared(Growth.LINEAR, "at most two segments for each 500 commits", slope=2 * SEGMENTS),
        Declared(Growth.LINEAR, "every commit stays provable", slope=0.25 * COMMITS),
    ),
    **files_and_bytes(
        "view_data",
        Declared(Growth.LINEAR, "two files for each day of a view, and old versions for a time", slope=6),
        Declared(Growth.LINEAR, "groups of all days are kept", slope=40),
    ),
    **files_and_bytes(
        "view_log", BOUNDED, Declared(Growth.LINEAR, "a checkpoint lists the files of all days", slope=8)
    ),
    **files_and_bytes("indexes", BOUNDED, Declared(Growth.LINEAR, "groups of all days are kept", slope=60)),
    **files_and_bytes("ids", BOUNDED, Declared(Growth.LINEAR, "a hash for each event", slope=2)),
    **files_and_bytes("manifests", BOUNDED, Declared(Growth.LINEAR, "each lists the files of all days", slope=16)),
    **files_and_bytes(
        "publish_log",
        Declared(Growth.LINEAR, "an entry for each run", slope=1.2),
        Declared(Growth.LINEAR, "the same", slope=5),
    ),
    **files_and_bytes(
        "definitions",
        Declared(Growth.LINEAR, "two for each version of a view", slope=0.3),
        Declared(Growth.LINEAR, "the same", slope=0.5),
    ),
    **files_and_bytes(
        "rest_of_home",
        Declared(Growth.BOUNDED, "locks and status files", slack=12),
        Declared(Growth.FLAT, "the same", 1.5, 500),
    ),
}
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
