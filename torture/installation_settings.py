"""The settings of an installation under torture: defaults, faster where waiting proves nothing, on ports of its own."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.settings import Settings, load_settings
from infra.stack.ports import is_free
from views.sample_events import START

ROOM_OF_LOAD_S = 5 * 24 * 3600
"""Events come two days late, and a clock may be two days ahead."""
PORTS = (15_000, 32_000)
"""Below those that Linux gives to clients."""
PLAIN: Mapping[str, Any] = {
    "with_examples": False,
    "archiver_enabled": True,
    "speed_enabled": True,
    "serving_enabled": True,
    "alerts_enabled": True,
    "scheduler_enabled": False,  # the programme starts runs itself, and knows when; a fault has a scheduler of its own
    "speed_grace_s": 2,
    "batch_wait_s": 60,
    "archive_interval_s": 1,
    "archive_max_interval_s": 1,
    "speed_dedup_horizon_s": 4 * 24 * 3600,  # duplicates come an hour later, and clocks are set wrong meanwhile
    "start_timeout_s": 180,
    "restart_backoff_max_s": 1,  # a process that is killed again and again must not be slow to return
    "hang_timeout_s": 0,  # faults stop a service for as long as they need; those about hanging turn it on
    "min_free_disk_mb": 64,
    "collector_min_free_disk_mb": 32,  # the disks are small
}
OF_LOCATION = (
    "home", "views_dir", "ports_file", "master_dir", "batch_dir", "kafka_", "redis_", "spark_master", "access_",
)  # fmt: skip
"""Settings (or prefixes of their names) that say where things are, not what is computed."""
OF_MACHINE = ("java_home", "jars_dir", "ivy_settings", "ports_file", "spark_driver_memory")
"""Settings of the machine. Nothing else is taken from a file or a variable, or each run would be another."""


def torture_settings(
    folder: Path, views_dir: Path, pairs: Sequence[tuple[str, str]], overrides: Mapping[str, Any]
) -> Settings:
    """Settings for an installation in `folder`, with fixed ports for servers behind a link."""
    usual = {**_defaults(), **PLAIN, **_ports(pairs), "alerts_late_s": _age_of_load_s(), "views_dir": views_dir}
    return load_settings(**{**usual, **overrides}, home=folder / "home")


def free_port() -> int:
    """A port that nobody uses now, and that no client is given by chance: a broker that is started again needs it."""
    while not is_free(port := random.randrange(*PORTS)):  # noqa: S311  no secret
        pass
    return port


def is_of_location(name: str) -> bool:
    """Whether a setting says where things are: an installation under torture always has a location of its own."""
    return name.startswith(OF_LOCATION) or name.endswith(("_port", "_host", "_file", "_enabled"))


def _defaults() -> dict[str, Any]:
    """Defaults, as if nobody had set anything: only our own installation is hurt, whatever cluster a file names."""
    names = [name for name in Settings.model_fields if name not in ("home", *OF_MACHINE)]
    return {name: Settings.model_fields[name].get_default() for name in names}


def _age_of_load_s() -> float:
    """How late alerts look at events: those of the load are of some days in March, whatever day it is."""
    return time.time() - START.timestamp() + ROOM_OF_LOAD_S


def _ports(pairs: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Ports that must be known before anything starts, because links lead to them."""
    return {f"{server}_port": free_port() for server in sorted({server for _, server in pairs} - {"kafka"})}
