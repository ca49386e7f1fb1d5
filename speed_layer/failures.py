"""Failures of a writer of speed views: whether Spark ended under it, and the failure in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def has_ended(spark: SparkSession) -> bool:
    """Whether the session is of no use any more."""
    try:
        context: Any = spark.sparkContext
        return bool(context._jsc.sc().isStopped())
    except Exception:
        return True


def one_line(error: Exception) -> str:
    """What to report of a failure: its first line, or what to do about it."""
    text = str(getattr(error, "desc", None) or str(error) or type(error).__name__).strip()
    if "OOM command not allowed" in text:
        return (
            "Redis is full, so nothing was written. A batch run frees what it takes over (`tidemark batch run`), or "
            "give Redis more: redis_max_memory_mb, or maxmemory of your own."
        )
    return text.splitlines()[0][:500]
