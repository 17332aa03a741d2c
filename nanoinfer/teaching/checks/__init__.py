"""The checks of the exercises: nb04.py, and nb04_*.py where one file would be too long, have those of notebook 04, and are
loaded when one of them is used."""
