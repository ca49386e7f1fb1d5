"""THE FACTS: every event that was acknowledged, in Kafka and then in the immutable master dataset."""
