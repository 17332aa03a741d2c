"""PEFT's adapters in transformers' `generate`: one batch, in which every request has its own adapter or none."""

import importlib.util
from pathlib import Path
from typing import Any

_spec = importlib.util.spec_from_file_location("peer_transformers", Path(__file__).with_name("transformers.py"))
assert _spec is not None
assert _spec.loader is not None
_transformers = importlib.util.module_from_spec(_spec)  # not on the path, where it would hide the package of its name
_spec.loader.exec_module(_transformers)

BASE = "__base__"  # PEFT's name for no adapter


class Peer(_transformers.Peer):  # type: ignore[name-defined]
    """As transformers', with `adapters`: name → folder, in the model's dtype. Without any, it is the model itself."""

    model: Any
    versions: dict[str, str]

    def __init__(
        self, model: str, dtype: str, threads: int, adapters: dict[str, str] | None = None, max_batch: int = 16
    ):
        import peft

        super().__init__(model, dtype, threads, max_batch)
        for name, path in (adapters or {}).items():
            if isinstance(self.model, peft.PeftModel):
                self.model.load_adapter(path, name, autocast_adapter_dtype=False)
            else:
                self.model = peft.PeftModel.from_pretrained(self.model, path, name, autocast_adapter_dtype=False)
        self.model.eval()
        self.versions = {"peft": peft.__version__, **self.versions}
        self._adapters: dict[int, str] = {}  # index → name

    def add(self, index: int, prompt: list[int], new_tokens: int, adapter: str | None = None) -> None:
        super().add(index, prompt, new_tokens)
        self._adapters[index] = BASE if adapter is None else adapter

    def generate_options(self, indices: list[int]) -> dict[str, Any]:
        """Which adapter each request of the batch has, if there are any."""
        names = [self._adapters[index] for index in indices]
        return {} if set(names) == {BASE} else {"adapter_names": names}
