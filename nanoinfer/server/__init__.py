"""The HTTP server: OpenAI's protocol, and vLLM's and SGLang's additions to it, in front of an AsyncEngine.

    uvicorn.run(make_app(LLM("story")))     # or: python -m nanoinfer serve story

`app.py` shows which routes there are and what a request passes on its way to one.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanoinfer.server.app import make_app
    from nanoinfer.server.run import ServerThread
    from nanoinfer.server.settings import ServerSettings

__all__ = ["ServerSettings", "ServerThread", "make_app"]
_FILES = {"make_app": "app", "ServerSettings": "settings", "ServerThread": "run"}
_NEEDS = ("fastapi", "uvicorn", "prometheus_client")


def __getattr__(name: str) -> Any:
    """Load a public name at its first use. ImportError, with the command to install what it needs, if that is missing."""
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_installed()
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_FILES[name]}"), name)


def check_installed() -> None:
    """ImportError naming the command that installs what the server needs, unless it is there."""
    if missing := [package for package in _NEEDS if find_spec(package) is None]:
        raise ImportError(f"the server needs {', '.join(missing)}: pip install nanoinfer[server]")
