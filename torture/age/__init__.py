"""Ageing: years of nightly operation of one installation in minutes, and whether anything grows that should not."""
