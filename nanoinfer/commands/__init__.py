"""What `python -m nanoinfer` runs, one file per command."""
