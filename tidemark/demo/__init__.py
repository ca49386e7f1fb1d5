"""The demo: the whole platform at work on one machine."""
