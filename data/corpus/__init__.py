"""Grammars that write the training corpus: stories, dialogues and number lines."""
