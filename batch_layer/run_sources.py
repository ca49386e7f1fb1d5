"""The sources that batch runs are made for."""

from __future__ import annotations

from infra.settings import Settings
from master_dataset.table.ledger import ledger_file
from master_dataset.table.paths import table_path


def sources_with_views(settings: Settings) -> list[str]:
    """The declared sources that any view is declared of: those that batch runs are made for."""
    from views.declarations import declared_by

    declared = declared_by(settings)
    return [name for name in declared.sources if declared.views_of(name)]


def sources_to_run(settings: Settings) -> list[str]:
    """Those of them that anything was archived of: a source without events has no run, and lacks none."""
    return [source for source in sources_with_views(settings) if _is_archived(settings, source)]


def _is_archived(settings: Settings, source: str) -> bool:
    """Whether a master table has more than the commit that made it. Where that is unclear, the run says what is up."""
    table = table_path(settings, source)
    commits = (table / "_delta_log").glob("*.json")
    return ledger_file(table).is_file() or any(path.stem != f"{0:020}" for path in commits)
