"""Schemas with versions and ids, as Confluent's schema registry stores them in the topic `_schemas`."""
