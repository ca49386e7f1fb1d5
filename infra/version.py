"""The version of Tidemark, and those of its dependencies as they are installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

VERSION = "0.2.0.dev0"
"""Of this code, whatever the environment has installed: `pyproject.toml` takes it from here.

A home records it. So it grows with `LAYOUT` (infra/home.py), at the latest: a refused downgrade names two versions.
"""
STANDS_ON = ("pyspark", "delta-spark", "kafka-python", "redis", "fastapi", "uvicorn")


def versions() -> dict[str, str]:
    """Tidemark first, then the packages that a bug report should name."""
    return {"tidemark": VERSION, **{name: _version(name) for name in STANDS_ON}}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
