"""One file per engine. `worker.py` runs it in the engine's environment, so nothing here imports nanoinfer's bench."""
