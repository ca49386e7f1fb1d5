"""The Kafka REST proxy of the collector: produce, consume and fetch records, and administer topics."""
