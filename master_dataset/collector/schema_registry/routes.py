"""All routes of the registry, in the order in which they are tried."""

from __future__ import annotations

from fastapi import APIRouter

from master_dataset.collector.context import Collector
from master_dataset.collector.schema_registry.context import Serving
from master_dataset.collector.schema_registry.levels import other_routes, rule_routes
from master_dataset.collector.schema_registry.schemas import schema_routes
from master_dataset.collector.schema_registry.subjects import subject_routes
from master_dataset.registry.registry import Registry


def registry_routes(collector: Collector, registry: Registry) -> list[APIRouter]:
    """The routers of the registry; the last one answers 404."""
    serving = Serving(collector, registry)
    return [schema_routes(serving), subject_routes(serving), rule_routes(serving), other_routes(serving)]
