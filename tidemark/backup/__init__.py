"""Back up an installation into a folder, and restore it from there."""
