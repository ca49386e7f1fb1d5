"""What a user's installation declares and how it is set, for a programme that never touches the installation itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infra.errors import HomeError
from infra.home import Home
from infra.settings import SECRETS, load_settings
from torture.errors import TortureError
from views.declarations import declared_by

OURS = ("home", "views_dir", "ports_file", "master_dir", "batch_dir", "kafka_", "redis_", "spark_master", "access_")
"""Settings (or what their names begin with) that belong to the place, not to what is computed."""


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
    set_there = settings.model_dump(exclude_defaults=True, exclude=set(SECRETS))
    kept = {name: value for name, value in set_there.items() if not name.startswith(OURS) and not _is_place(name)}
    examples = {"with_examples": settings.with_examples, "examples": settings.examples}
    how: dict[str, Any] = {"overrides": {**kept, **examples}, "source": source or names[0]}
    return {**how, "views": settings.views_dir}


def _is_place(name: str) -> bool:
    return name.endswith(("_port", "_host", "_file", "_enabled"))
