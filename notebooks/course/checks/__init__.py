"""The checks of the exercises. nb05.py has those of notebook 05 (and nb05_*.py the rest, where one file would be too long).
They are loaded when one of them is used."""
