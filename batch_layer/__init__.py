"""RECOMPUTE: everything before a cut, from the master dataset, into batch views."""
