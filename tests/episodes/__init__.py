"""Episodes of the soak (`python -m tests.soak`), one kind per file."""
