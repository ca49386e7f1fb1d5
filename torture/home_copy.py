"""What the fault programme takes from a user's home (`--copy-of`): declarations, and settings that it can work with.

The home is only read. Its data, addresses, secrets and alerts are not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from infra.errors import HomeError
from infra.home import Home
from infra.settings import SECRETS, Settings, load_settings
from torture.errors import TortureError
from torture.installation_settings import PLAIN, is_of_location
from views.declarations import declared_by

OWN: Mapping[str, Callable[[Any, Any], Any]] = {
    "speed_dedup_horizon_s": max,  # duplicates come an hour later, and must be within the horizon
    "start_timeout_s": max,
    "batch_wait_s": max,
    "archive_interval_s": min,
    "archive_max_interval_s": min,
    "restart_backoff_max_s": min,
    "min_free_disk_mb": min,  # its disks are small
}
"""Settings that the programme counts on: which of a user's value and its own is taken."""
LIMITS = (
    "collector_max_body_mb",
    "collector_max_event_kb",
    "collector_max_batch",
    "serving_max_rows",
    "serving_max_periods",
    "serving_max_groups",
    "serving_max_state_mb",
    "serving_max_values",
)
"""Beyond these, requests are refused with neither 429 nor 503: at least the defaults, for which the load is made."""
LEFT_OUT = ("serving_workers",)
"""Cuts never go back in the answers of one process: there is one."""


def copied(home: Path, source: str) -> dict[str, Any]:
    """How to make an installation like that of `home`: arguments for Installation. Reads, and writes nothing."""
    if not Home(home).exists:
        raise HomeError(f"--copy-of is {str(home)!r}, where there is no home.")
    settings = load_settings(home=home)
    declared = declared_by(settings)
    names = [name for name in declared.sources if list(declared.views_of(name))]
    if source and source not in names:
        raise TortureError(
            f"--source is {source!r}, which has no views there. There are: {', '.join(names) or 'none'}."
        )
    if not names:
        raise TortureError(f"{str(home)!r} declares no views. `tidemark views new NAME` writes a beginning.")
    return {"overrides": _overrides(settings), "source": source or names[0], "views": settings.views_dir}


def _overrides(settings: Settings) -> dict[str, Any]:
    """What is set there and says how things are computed; as far as the programme can do with it."""
    set_there = settings.model_dump(exclude_defaults=True, exclude=set(SECRETS))
    kept = {name: value for name, value in set_there.items() if not is_of_location(name) and name not in LEFT_OUT}
    for name, chosen in OWN.items():
        if name in kept:
            kept[name] = chosen(kept[name], PLAIN[name])
    for name in kept.keys() & {*LIMITS}:
        kept[name] = max(kept[name], Settings.model_fields[name].default)
    # Alerts of a user may name webhooks, and nobody must be notified of made-up events.
    return {**kept, "with_examples": settings.with_examples, "examples": settings.examples, "alerts_enabled": False}
