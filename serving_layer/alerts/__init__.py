"""Continuous queries: alerts, watches and feeds, kept by a process of their own beside the server that answers."""
