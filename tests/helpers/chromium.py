"""Headless Chromium, where it is installed, for tests of pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
OPTIONS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --window-size=900,1000"
)
needs_chromium = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="Chromium and its driver are not installed (Debian: chromium chromium-driver)"
)


@contextmanager
def chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    """A browser with its user data in `profile`; it logs what pages say and fetch."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for option in (*OPTIONS.split(), f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(service=Service(DRIVER), options=options)
    try:
        driver.set_script_timeout(20)
        yield driver
    finally:
        driver.quit()


@contextmanager
def device(page: webdriver.Chrome, width: int, height: int, dark: bool = False, touch: bool = False) -> Iterator[None]:
    """The page on a screen of `width` × `height` CSS pixels."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": touch})
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    try:
        yield
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
