"""answer: what the cell of a "Predict" question prints and draws, folded away until the student asks for it."""

import html
import io
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

LABEL = "Show the answer"
_WIDGET = "application/vnd.jupyter.widget-view+json"

_Item = str | tuple[dict[str, Any], dict[str, Any]]  # text of a stream, or (data, metadata) of something displayed


class answer:
    """`with answer():` runs its block, and folds all that it prints or displays under a line to click on.

    In a notebook the output is one HTML element, `<details>`, which needs no script: it is folded where the cell has been
    run, where the notebook is only read, on GitHub and in what nbconvert makes of it, and it opens with a click or with
    Enter. Its plain text is what the block would have printed. Pictures are inside as data, interactive figures as their
    frames. A live widget cannot be inside and is shown below. Text on stderr is not folded.

    Elsewhere (a terminal, a test) the block just runs. Exceptions pass through; what was shown before them is folded.
    `label`: the line to click on.
    """

    def __init__(self, label: str = LABEL):
        self.label = label
        self._items: list[_Item] = []
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        shell = _notebook_shell()
        if shell is None:
            return
        self._items = []
        stdout, publisher = sys.stdout, shell.display_pub
        stdout.flush()
        sys.stdout = _Stream(self._items)
        shell.display_pub = _publisher(self._items)

        def undo() -> None:
            sys.stdout, shell.display_pub = stdout, publisher

        self._undo.append(undo)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._undo:
            return
        self._undo.pop()()
        from IPython.display import display

        folded = [item for item in self._items if not _is_widget(item)]
        if folded:
            display({"text/html": folded_html(folded, self.label), "text/plain": plain_text(folded)}, raw=True)
        for item in self._items:
            if not isinstance(item, str) and _is_widget(item):
                display(item[0], raw=True, metadata=item[1])


def folded_html(items: list[_Item], label: str = LABEL) -> str:
    """`items` in order, inside `<details>`."""
    parts, after_page = list[str](), False
    for item in _joined(items):
        is_still = after_page and not isinstance(item, str) and "image/png" in item[0]  # of the page above it
        if not is_still:
            parts.append(_stream_html(item) if isinstance(item, str) else _data_html(*item))
        after_page = 'class="interactive"' in parts[-1]
    return "\n".join([f"<details><summary>{html.escape(label)}</summary>", *filter(None, parts), "</details>"])


def plain_text(items: list[_Item]) -> str:
    """`items` in order, as text. The numbers of a picture, which are printed beneath it, are there once."""
    texts: list[str] = []
    for item in _joined(items):
        text = (item if isinstance(item, str) else str(item[0].get("text/plain", ""))).rstrip("\n")
        if texts and texts[-1] and text.split()[: len(texts[-1].split())] == texts[-1].split():
            texts.pop()
        texts.append(text)
    return "\n".join(filter(None, texts))


def _joined(items: list[_Item]) -> list[_Item]:
    """Neighbouring pieces of text as one."""
    joined: list[_Item] = []
    for item in items:
        if isinstance(item, str) and joined and isinstance(joined[-1], str):
            joined[-1] += item
        else:
            joined.append(item)
    return joined


def _stream_html(text: str) -> str:
    return f"<pre>{html.escape(text.rstrip())}</pre>" if text.strip() else ""


def _data_html(data: dict[str, Any], metadata: dict[str, Any]) -> str:
    if "text/html" in data:
        return str(data["text/html"])
    text = str(data.get("text/plain", ""))
    if "image/png" in data:
        width = metadata.get("image/png", {}).get("width")
        size = f' width="{width}"' if width else ""
        source = f"data:image/png;base64,{''.join(data['image/png'].split())}"
        return f'<img alt="{html.escape(text)}"{size} style="max-width:100%" src="{source}">'
    return _stream_html(text)


def _is_widget(item: _Item) -> bool:
    return not isinstance(item, str) and _WIDGET in item[0]


def _notebook_shell() -> Any:
    """IPython's shell where it belongs to a notebook, else None. IPython is not loaded for that."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    shell = get_ipython()
    return shell if shell is not None and hasattr(shell, "kernel") else None


class _Stream(io.StringIO):
    """Standard output, kept piece by piece."""

    def __init__(self, items: list[_Item]):
        super().__init__()
        self._items = items

    def write(self, text: str) -> int:
        if text:
            self._items.append(text)
        return len(text)


def _publisher(items: list[_Item]) -> Any:
    """What IPython hands everything displayed to, kept piece by piece."""
    from IPython.core.displaypub import CapturingDisplayPublisher

    class Publisher(CapturingDisplayPublisher):
        def publish(self, data: Any, metadata: Any = None, *arguments: Any, **options: Any) -> None:
            items.append((dict(data), dict(metadata or {})))

        def clear_output(self, wait: bool = False) -> None:
            items.clear()

    return Publisher()
