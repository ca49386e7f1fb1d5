"""Spark sessions and their scratch folders."""
