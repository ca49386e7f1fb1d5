"""Confluent's REST Proxy v2, under a prefix that clients take as part of their base URL."""

from __future__ import annotations

from fastapi import APIRouter

from master_dataset.collector.context import Collector
from master_dataset.collector.kafka_rest.consumers import Consumers
from master_dataset.collector.kafka_rest.embedded_schemas import EmbeddedSchemas
from master_dataset.collector.kafka_rest.v2_consume import consumer_routes
from master_dataset.collector.kafka_rest.v2_instances import instance_routes
from master_dataset.collector.kafka_rest.v2_metadata import metadata_routes
from master_dataset.collector.kafka_rest.v2_produce import produce_routes


def v2_routes(collector: Collector, consumers: Consumers, schemas: EmbeddedSchemas) -> list[APIRouter]:
    """`/rest-proxy/...`."""
    return [
        metadata_routes(collector),
        produce_routes(collector, schemas),
        instance_routes(collector, consumers),
        consumer_routes(collector, consumers, schemas),
    ]
