"""KEEP UP: everything since the cut, from Kafka, into speed views in Redis."""
