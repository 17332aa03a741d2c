"""One file an engine. `worker.py` runs them, each in an environment of its own; nothing here imports nanoinfer's bench."""
