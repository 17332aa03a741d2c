"""Episodes of one kind per file."""
