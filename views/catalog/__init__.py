"""Declared examples, one file a subject: copy one to begin your own."""
