"""One file per engine. `worker.py` runs it in the engine's environment; nothing here imports nanoinfer's bench."""
