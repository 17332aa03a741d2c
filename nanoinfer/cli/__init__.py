"""The commands of `python -m nanoinfer`, one file per command."""
