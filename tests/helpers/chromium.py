"""Headless Chromium, where it is installed, for tests of pages; and axe-core, which finds what is hard to read or to use.

The fixture `browser` (tests/conftest.py) starts Chromium.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.waiting import HANG_S, until

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
OPTIONS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --window-size=900,1000"
)
AXE_CORE = "axe-core@4.14.1"  # .ci/run installs what stands here
AXE = Path(__file__).parent.parent.parent / "node_modules" / "axe-core" / "axe.min.js"
needs_axe = pytest.mark.skipif(
    not AXE.is_file(), reason=f"axe-core is not installed (npm install --prefix . --no-save {AXE_CORE})"
)
LAPTOP, PHONE = (1366, 768), (390, 844)


@contextmanager
def chromium(profile: Path) -> Iterator["Chrome"]:
    """A browser with its user data in `profile`; it logs what pages say and fetch. Skips where there is none."""
    pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
    if not (CHROMIUM and DRIVER):
        pytest.skip("Chromium and its driver are not installed (Debian: chromium chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    class Patient(webdriver.Chrome):
        """On a busy machine the driver sometimes says that a page is there before its scripts have run."""

        def get(self, url: str) -> None:
            if "#" not in url:  # with it, the page may only have to move
                self.execute_script("document.isLeft = true")
            super().get(url)
            self._until_there(url == "about:blank")

        def refresh(self) -> None:
            self.execute_script("document.isLeft = true")
            super().refresh()
            self._until_there(is_empty=False)

        def _until_there(self, is_empty: bool) -> None:
            script = """
                const isEmpty = location.href === "about:blank";
                return document.readyState === "complete" && !document.isLeft && isEmpty === arguments[0];"""
            until(lambda: self.execute_script(script, is_empty), "the page in the browser")

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in (*OPTIONS.split(), f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Patient(service=Service(DRIVER), options=options)
    try:
        driver.set_script_timeout(HANG_S)
        driver.set_page_load_timeout(HANG_S)
        yield driver
    finally:
        driver.quit()


def clean(browser: "Chrome") -> None:
    """One empty tab, on the screen that it began with; nothing is logged or kept yet."""
    first, *others = browser.window_handles
    for tab in others:
        browser.switch_to.window(tab)
        browser.close()
    browser.switch_to.window(first)  # and out of any frame
    _as_it_is(browser)
    browser.execute_script("try { sessionStorage.clear(); localStorage.clear(); } catch {}")
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get_log("performance")


def press(page: "Chrome", *keys: str) -> None:
    """Keys that whatever has the focus gets."""
    from selenium.webdriver import ActionChains

    ActionChains(page).send_keys(*keys).perform()


@contextmanager
def device(page: "Chrome", width: int, height: int, dark: bool = False, touch: bool = False) -> Iterator[None]:
    """The page on a screen of `width` × `height` CSS pixels."""
    emulate(page, width, height, dark, touch)
    try:
        yield
    finally:
        _as_it_is(page)


def emulate(page: "Chrome", width: int, height: int, dark: bool = False, touch: bool = False) -> None:
    """As `device`, for all pages from now on until the test ends, which lays out each of them once less."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": touch})
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    drawn(page)


def drawn(page: "Chrome") -> None:
    """Wait until the page has drawn itself in the size that it has now; a page may do that one picture later."""
    page.execute_async_script("""
        const done = arguments[arguments.length - 1];
        const after = (pictures) => (pictures ? requestAnimationFrame(() => after(pictures - 1)) : done());
        after(3);""")


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


def _as_it_is(page: "Chrome") -> None:
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
