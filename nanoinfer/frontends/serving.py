"""Serving: what `LLM.serve` returns. The server itself is in nanoinfer/server/, which is above this folder."""

from importlib import import_module
from typing import Any, Protocol

SERVER = "nanoinfer.server"
# Where notebooks on this machine are shown: Jupyter's pages, and VS Code's.
NOTEBOOKS = ("http://localhost:*", "http://127.0.0.1:*", "vscode-webview:")


class Serving(Protocol):
    """A server that runs in the background. `with` stops it at its end. As the last expression of a notebook's cell, it is
    its live page in a frame."""

    @property
    def url(self) -> str:
        """Such as `http://127.0.0.1:8000`. OpenAI's clients want it with `/v1` behind it."""

    def stop(self) -> None:
        """End it, and wait until it has: requests that it has accepted are served first. The model stays loaded."""

    def __enter__(self) -> "Serving": ...

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None: ...


def serve_in_background(llm: Any, port: int, host: str, **settings: Any) -> Serving:
    """A server around `llm` that accepts connections. Errors as in `LLM.serve`."""
    server = import_module(SERVER)
    settings.setdefault("framed_by", NOTEBOOKS)
    settings["allowed_hosts"] = [*settings.get("allowed_hosts", ()), host]
    serving: Serving = server.ServerThread(server.make_app(llm, **settings), port, host).start()
    return serving
