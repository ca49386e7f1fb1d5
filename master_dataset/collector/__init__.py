"""The collector: events and messages by REST into Kafka, acknowledged, and back out again."""
