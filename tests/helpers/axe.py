"""axe-core, where it is installed: what it finds in a page that is hard to read or to use for some."""

from pathlib import Path
from typing import Any

import pytest

AXE_CORE = "axe-core@4.14.1"  # .ci/run installs what stands here
AXE = Path(__file__).parent.parent.parent / "node_modules" / "axe-core" / "axe.min.js"
needs_axe = pytest.mark.skipif(
    not AXE.is_file(), reason=f"axe-core is not installed (npm install --prefix . --no-save {AXE_CORE})"
)


def axe_findings(page: Any) -> list[Any]:
    """What axe finds in the page as it is now: the rule that is broken, and by which elements."""
    if not page.execute_script("return 'axe' in window"):  # it is long: it goes to the browser once for each page
        page.execute_script(AXE.read_text(encoding="utf-8"))
    return page.execute_async_script("""
        const done = arguments[arguments.length - 1];
        const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
        const options = { runOnly: { type: "tag", values: tags }, rules: { "target-size": { enabled: true } } };
        Object.assign(options, { resultTypes: ["violations"], preload: { assets: ["media"] } }); // takes less time
        axe.run(document, options).then(
          (results) => done(results.violations.map((one) => [one.id, one.nodes.map((node) => node.html)])),
          (error) => done([["axe failed", String(error)]]),
        );""")
