"""The fault programme: a running installation, what is done to it, and whether it ever answers wrongly."""
