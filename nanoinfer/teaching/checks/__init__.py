"""The checks of the exercises, one file per notebook: nb04.py has those of 04, and is loaded when one of them is used."""
