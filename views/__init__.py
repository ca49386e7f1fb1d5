"""WHAT is computed: a view is declared once, and every layer reads the same declaration."""
