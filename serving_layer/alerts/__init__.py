"""Continuous queries: alerts, watches and feeds. They run in a process of their own, beside the serving process."""
