"""How Kafka and Redis clients connect."""
