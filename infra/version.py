"""The versions of Tidemark and of its dependencies, read from the installed packages."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

STANDS_ON = ("pyspark", "delta-spark", "kafka-python", "redis", "fastapi", "uvicorn")


def versions() -> dict[str, str]:
    """Tidemark first, then the packages that a bug report should name."""
    return {"tidemark": VERSION, **{name: _version(name) for name in STANDS_ON}}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


VERSION = _version("tidemark")
