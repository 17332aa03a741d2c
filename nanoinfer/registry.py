"""Registries: the named alternatives that an option chooses among.

One line adds an alternative, inside or outside the package: `EVICTION_POLICIES["mru"] = newest_first`. The modules with
the built-in ones register them when `nanoinfer` is imported.
"""

from typing import Any, TypeVar

T = TypeVar("T")


class Registry(dict[Any, T]):
    """Alternatives by name. `option` is the setting that chooses one of them; error messages name it.

    A registry may have an alternative under None, which is used if the option is not set. `hint`: what an error message
    adds after the list of alternatives.
    """

    def __init__(self, option: str, hint: str = ""):
        super().__init__()
        self.option, self.hint = option, hint

    def check(self, name: object) -> None:
        """Raise a ValueError that lists the alternatives unless `name` is one of them."""
        if not any(isinstance(name, type(key)) and name == key for key in self):  # it may be unhashable, or an array
            raise ValueError(f"{self.option}={name!r}: must be one of {', '.join(map(str, self))}{self.hint}")


ATTENTION_BACKENDS: Registry[Any] = Registry("attention_backend")  # model/attention/select.py
DRAFTERS: Registry[Any] = Registry("drafter")  # drafting/make.py
EVICTION_POLICIES: Registry[Any] = Registry("eviction_policy")  # cache/eviction.py
MODEL_FAMILIES: Registry[Any] = Registry("architecture")  # model/families.py
QUANTIZATIONS: Registry[Any] = Registry(  # model/layers/linear_weights.py
    "quantization", "; quantized checkpoints are not supported, use the original"
)
KV_STORAGES: Registry[Any] = Registry(  # cache/kv_storage.py, cache/int8_kv_storage.py
    "kv_cache_dtype", "; fp8 is not implemented, int8 takes as little memory"
)
SCHEDULE_POLICIES: Registry[Any] = Registry("schedule_policy")  # scheduling/policy.py
