"""The checks of the exercises: nb05.py has those of notebook 05. They are loaded when one of them is used."""
