"""Java: find it, fetch the jars, keep the class archive."""
