"""The REST interface of the serving layer."""
