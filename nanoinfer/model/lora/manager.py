"""Adapters: the adapters of one model, by name. Names are for callers; inside, a request has its Adapter itself."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from torch import nn

from nanoinfer.errors import AdapterError
from nanoinfer.model.loader import BUNDLED_ROOTS
from nanoinfer.model.lora.adapter import Adapter
from nanoinfer.model.lora.peft_files import BUNDLED_ADAPTERS, read_adapter
from nanoinfer.model.lora.pool import AdapterPool

BASE = "base"  # what callers may say in place of None


def bundled_adapter(name: str | Path) -> Path | None:
    """The folder of a bundled adapter; None for anything else. AdapterError if this installation does not have it."""
    if str(name) not in BUNDLED_ADAPTERS:
        return None
    for root in BUNDLED_ROOTS:
        if (folder := root / "adapters" / str(name)).is_dir():
            return folder
    raise AdapterError(f"adapter {str(name)!r}: is bundled, but is not in {' or '.join(map(str, BUNDLED_ROOTS))}")


class Adapters(Mapping[str, Adapter]):
    """The loaded adapters of `network`, at most `max_on_device` of which are on the device at the same time.

    `most`: how many may be loaded; None: any number.
    """

    def __init__(self, network: Any, max_on_device: int, most: int | None = None):
        self._network, self._loaded, self._most = network, dict[str, Adapter](), most
        self._adding = Lock()
        self.pool = AdapterPool(network if isinstance(network, nn.Module) else nn.Module(), max_on_device)

    def __getitem__(self, name: str) -> Adapter:
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._loaded))  # another thread may load one meanwhile

    def __len__(self) -> int:
        return len(self._loaded)

    def find(self, name: str | None, field: str = "adapter") -> Adapter | None:
        """The adapter that a caller means; None for the base model, which "base" means, too. AdapterError if there is none
        of this name; `field` is what the message calls it."""
        if name is None or name == BASE:
            return None
        if not isinstance(name, str):
            raise AdapterError(f"{field}={name!r}: must be a name, or None for the base model")
        if name not in self._loaded:
            there = ", ".join(map(repr, list(self._loaded))) or "none"
            raise AdapterError(f"{field}={name!r}: no such adapter; loaded: {there}; None is the base model")
        return self._loaded[name]

    def load(self, name: str, path: str | Path) -> Adapter:
        """Read an adapter in PEFT's format into host memory, from the folder `path`, or a bundled one by its name. Any
        thread may do so.

        AdapterError naming what is wrong with the name or the files; nothing has changed then.
        """
        if not isinstance(name, str) or not name or any("\ud800" <= char <= "\udfff" for char in name):
            raise AdapterError(f"adapter {name!r}: a name must be text that is not empty, without lone surrogates")
        if name == BASE:
            raise AdapterError(f"adapter {name!r}: this name is the base model's; choose another")
        self._check_room(name)
        folder = bundled_adapter(path) or path
        parts = read_adapter(folder, self._network)
        adapter = Adapter(name, Path(folder), parts)
        with self._adding:
            self._check_room(name)  # again: another thread may have loaded one meanwhile
            self._loaded[name] = adapter
        return adapter

    def _check_room(self, name: str) -> None:
        if name in self._loaded:
            raise AdapterError(f"adapter {name!r}: is loaded already, from {self._loaded[name].path}; unload it first")
        if self._most is not None and len(self._loaded) >= self._most:
            raise AdapterError(
                f"adapter {name!r}: {len(self._loaded)} are loaded, must not exceed the {self._most} that there is room "
                "for; unload one first"
            )

    def unload(self, name: str) -> Adapter:
        """Forget an adapter. No request may use it any more. AdapterError if there is none of this name."""
        adapter = self.find(name)
        if adapter is None:
            raise AdapterError(f"adapter={name!r}: is the base model, which stays")
        self.pool.remove(adapter)
        del self._loaded[name]
        return adapter
