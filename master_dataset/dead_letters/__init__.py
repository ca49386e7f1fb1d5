"""Dead letters: invalid records, sent to a topic of their own with the reason."""
