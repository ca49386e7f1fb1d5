"""WHAT is computed: a view is declared here once, and every layer reads the same declaration."""
