"""Example views, one file for each subject. Copy one to begin your own."""
