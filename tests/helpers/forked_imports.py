"""What takes long to load and most notebooks load: imported once, for all that `forked_nbval` runs."""

import contextlib
import gc
import io
import sys
from importlib import import_module

MODULES = (
    *("ipykernel.kernelapp", "ipywidgets", "matplotlib.pyplot", "nbformat", "torch.nn.functional"),
    *("transformers.models.llama.modeling_llama", "nanoinfer.frontends.async_engine", "nanoinfer.frontends.llm"),
    *("notebooks.course", "tests.helpers.forked_nbval"),
)

sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # jsonschema would compile its grammar for seconds
with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
    for module in MODULES:
        import_module(module)
assert not said.getvalue(), f"a notebook would say this when it imports: {said.getvalue()}"
assert "matplotlib_inline.backend_inline" not in sys.modules, (
    "it looks for IPython, which begins later, when it is loaded"
)
gc.freeze()  # processes that are forked need not look through, and so copy, all this whenever they collect garbage
