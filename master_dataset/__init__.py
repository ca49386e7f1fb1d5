"""THE RECORDS: every acknowledged event, in Kafka first and then in the immutable master dataset."""
