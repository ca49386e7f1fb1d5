"""What the settings allow: how large a question may be, and what its answer may take."""

from __future__ import annotations

from infra.settings import Settings
from serving_layer.query.budget import ExecutionLimits
from serving_layer.query.parse import QueryLimits


def query_limits(settings: Settings) -> QueryLimits:
    """How large a question may be."""
    return QueryLimits(
        max_rows=settings.serving_max_rows,
        max_periods=settings.serving_max_periods,
        max_values=settings.serving_max_values,
        max_wait_s=settings.serving_max_wait_s,
    )


def execution_limits(settings: Settings) -> ExecutionLimits:
    """What its answer may take."""
    return ExecutionLimits(
        max_groups=settings.serving_max_groups,
        max_state_mb=settings.serving_max_state_mb,
        cache_mb=settings.serving_cache_mb,
        timeout_s=settings.serving_timeout_s,
        speed_timeout_s=settings.serving_redis_timeout_s,
        speed_connections=settings.serving_threads + settings.serving_max_waiting,
    )
