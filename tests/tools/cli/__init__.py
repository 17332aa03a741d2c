"""Tests of the command line: what each command prints, and the chat in a terminal."""
