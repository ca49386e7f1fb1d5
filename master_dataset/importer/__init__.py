"""FILES IN: read logs and exports line by line and send each line as an event into a source's Kafka topic."""
