"""What depends on time, on chance or on which thread runs first, for as long as one likes: `python -m tests.soak`."""
