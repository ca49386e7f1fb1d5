"""The archiver: appends records from Kafka to the master dataset, each offset exactly once."""
