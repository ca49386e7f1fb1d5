"""Declared examples, one file each: copy one to begin your own."""
