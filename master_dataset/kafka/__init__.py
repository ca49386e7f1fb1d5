"""Kafka as the master dataset uses it: topics, consumer groups, positions, sending."""
