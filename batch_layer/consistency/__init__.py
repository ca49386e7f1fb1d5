"""Compare speed views with batch runs, and quarantine views that were wrong."""
