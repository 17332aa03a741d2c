"""The checks of the exercises, one file a notebook: nb04.py has those of 04. Loaded when the first of them is wanted."""
