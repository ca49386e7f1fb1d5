"""The schema registry by REST, below `/schema-registry`, for clients of Confluent's registry."""
