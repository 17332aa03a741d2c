"""What pages with scripts have in common: data inside a script, the palette as CSS, the frame in a notebook, the file."""

import html
import json
import re
from collections.abc import Mapping
from pathlib import Path

from nanoinfer.viz.palette import FETCHED, PHASE_STYLES, REQUESTS, ROLES, Style

# What a cell of a page may look like, by the name of its CSS class without the `o-`.
OWNERS: dict[str, Style] = {
    "free": ROLES["free"],
    "tree": ROLES["tree"],
    "locked": ROLES["tree_locked"],
    **{f"r{i}": style for i, style in enumerate(REQUESTS)},
}


def safe_json(value: object) -> str:
    """JSON that may stand inside a script element: no text in it can end that or be taken for HTML."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def palette_css(owners: Mapping[str, Style] = OWNERS | FETCHED) -> str:
    """The palette of the pictures as CSS classes: `o-...` for owners of slots, `p-...` for what a request does."""
    looks = {f"o-{name}": style for name, style in owners.items()}
    looks |= {f"p-{phase}": style for phase, style in PHASE_STYLES.items()}
    rules = [f".{name} {{ {_css(style)} }}" for name, style in looks.items()]
    roles = {"new": "new", "highlight": "highlight", "tree": "tree", "locked": "tree_locked"}
    variables = "; ".join(f"--{name}: {ROLES[role].face}" for name, role in roles.items())
    return "\n".join([f":root {{ {variables} }}", *rules])


def _css(style: Style) -> str:
    line = f"{style.mark} 0 1px, transparent 1px 4px"
    hatches = {
        "//": f"repeating-linear-gradient(-45deg, {line})",
        "\\\\": f"repeating-linear-gradient(45deg, {line})",
        "..": f"radial-gradient({style.mark} 22%, transparent 26%) 0 0 / 5px 5px",
        "xx": f"repeating-linear-gradient(-45deg, {line}), repeating-linear-gradient(45deg, {line})",
    }
    hatch = hatches.get(style.hatch[:2], "")
    return f"background: {hatch + ', ' if hatch else ''}{style.face}; color: {style.text}"


def filled(template: str, parts: Mapping[str, str]) -> str:
    """`template` with each `{{name}}` replaced by its part."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def frame(page: str, title: str, height: str, css_class: str = "") -> str:
    """`page` in a frame of its own, so that neither its styles nor its scripts meet those around it."""
    style = f"box-sizing:border-box;width:100%;height:{height};border:1px solid #9a9a9a;border-radius:6px"
    named = f'class="{css_class}" ' if css_class else ""
    return (
        f'<iframe {named}srcdoc="{html.escape(page)}" sandbox="allow-scripts" title="{html.escape(title)}" '
        f'style="{style}"></iframe>'
    )


def save_page(page: str, path: str | Path) -> None:
    """Write it. ValueError when `path` does not end in .html."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"path={str(path)!r}: must end in .html")
    Path(path).write_text(page, encoding="utf-8")
