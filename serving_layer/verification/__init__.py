"""Verify answers against the reference interpreter."""
