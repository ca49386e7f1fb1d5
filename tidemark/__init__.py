"""THE FRONT DOOR: what users import and type."""
