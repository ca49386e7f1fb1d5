"""Where a source's master table is, and the folder beside it with what Tidemark keeps of it."""

from __future__ import annotations

from pathlib import Path

from infra.settings import Settings


def table_path(settings: Settings, source: str) -> Path:
    """Where a source's table lives."""
    return (settings.master_dir or settings.home / "master") / source


def own_folder(table: Path) -> Path:
    """What we keep of a table beside it: ledger, locks, which dead letters were sent, what a repair took out."""
    return table.with_name(f"{table.name}.proofs")
