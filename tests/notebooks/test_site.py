"""The site: its workflow's command builds it, every link in it leads somewhere, and all its pages work in a browser."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urldefrag

import pytest

pytest.importorskip("myst_nb", reason="what builds the site is not installed (pip install -e '.[docs]')")

from babel.messages import pofile
from bs4 import BeautifulSoup

from notebooks.site.__main__ import run, templates
from notebooks.site.conf import PO, ROOT, TIME, TRANSLATED
from tests.helpers.chromium import LAPTOP, PHONE, axe_findings, device, emulate, needs_axe
from tests.helpers.waiting import until

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::PendingDeprecationWarning:myst_parser")]
MOST_BYTES = 1_500_000  # of a page with its scripts and styles, before pictures
LOOKED_AT = (
    *(
        "index",
        "notebooks/README",
        "notebooks/00_start_here",
        "notebooks/08_radix_cache",
        "notebooks/glossary",
        "zh/index",
    ),
    *("notebooks/handbook/usage", "notebooks/site/api", "data/bench/README", "zh/notebooks/05_memory_pools"),
)
WITHOUT_SLOW_IMPORTS = Path(__file__).parent.parent / "helpers" / "without_slow_imports"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the workflow's command."""
    workflow = (ROOT / ".github/workflows/pages.yml").read_text()
    (words,) = re.findall(r"- run: python (-m notebooks\.site) site\n", workflow)
    out = tmp_path_factory.mktemp("site")
    places = {**os.environ, "PYTHONPATH": f"{WITHOUT_SLOW_IMPORTS}:{ROOT}"}
    command = [sys.executable, *words.split(), str(out)]
    built = subprocess.run(command, cwd=ROOT, env=places, capture_output=True, text=True)
    assert (built.returncode, built.stdout, built.stderr) == (0, "", "")
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, BeautifulSoup]:
    """By name: those in English, the translated ones in Chinese, and one that has no translation there."""
    in_chinese = {f"zh/{page}" for page in (*TRANSLATED, "notebooks/short_way", "notebooks/teaching")}
    found = {}
    for path in sorted(site.rglob("*.html")):
        name, text = path.relative_to(site).as_posix()[:-5], path.read_text(encoding="utf-8")
        if "/site.css" in text and (not name.startswith("zh/") or name in in_chinese):  # not what pages embed
            found[name] = BeautifulSoup(text, "html.parser")
    return found


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Of a plain file server."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_everything_is_there(pages: dict[str, BeautifulSoup]) -> None:
    sources = [
        *ROOT.glob("notebooks/*.ipynb"),
        *ROOT.glob("notebooks/demos/*.ipynb"),
        *ROOT.glob("notebooks/handbook/*.md"),
    ]
    names = {path.relative_to(ROOT).with_suffix("").as_posix() for path in sources}
    assert len(names) > 30
    assert names | {"index", "notebooks/short_way", "notebooks/glossary", "notebooks/site/api"} <= pages.keys()
    for name in pages.keys() & names:
        (place,) = pages[name].select(".about a[href*='/blob/main/']")
        text = (ROOT / place.text).read_text(encoding="utf-8")
        assert "**Time:**" not in text or TIME.search(text), name
        assert not place.text.endswith(".ipynb") or place.text in pages[name].select_one("details.run pre").text
        assert pages[name].select(".next-page, .prev-page"), name
    assert {frame["src"] for frame in pages["index"].select("iframe")} == {"data/trace/example.html"}


def test_links_lead_to_files_and_to_places_in_them(site: Path, pages: dict[str, BeautifulSoup]) -> None:
    ids = {name: {tag["id"] for tag in page.select("[id]")} for name, page in pages.items()}
    broken = []
    for name, page in pages.items():
        for tag in page.select("a[href], img[src], iframe[src], script[src], link[href]"):
            url, fragment = urldefrag(tag.get("href") or tag.get("src"))
            if re.match(r"[a-z]+:", url):
                continue
            path = (site / name).parent / unquote(url.partition("?")[0]) if url else site / f"{name}.html"
            target = path.resolve()
            inside = ids.get(target.relative_to(site).as_posix().removesuffix(".html")) if fragment else None
            if not target.is_file() or (inside is not None and fragment not in inside):
                broken.append((name, tag.get("href") or tag.get("src")))
    assert broken == []


def test_links_into_the_repository_lead_to_its_files(pages: dict[str, BeautifulSoup]) -> None:
    found = {a["href"] for page in pages.values() for a in page.select("a[href*='/main/']")}
    paths = [re.search(r"/(?:blob|tree)/main/([^#]+)", url)[1] for url in found if "/nanoinfer/" in url]
    assert len(paths) > 50
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_page_is_small_and_shows_before_any_script_has_come(site: Path, pages: dict[str, BeautifulSoup]) -> None:
    for name, page in pages.items():
        of_page = [site / f"{name}.html"]
        for tag in page.select("script[src], link[rel=stylesheet]"):
            of_page.append((site / name).parent / (tag.get("src") or tag["href"]).partition("?")[0])
        assert sum(path.stat().st_size for path in of_page) < MOST_BYTES, name
        assert page.select("head script[src]:not([defer])") == [], name
        assert [tag for tag in page.select("iframe, article .output img") if tag["loading"] != "lazy"] == [], name
        assert page.select("[srcdoc], img[src^='data:']") == [], name


def test_a_broken_link_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pages/extra").mkdir(parents=True)
    good, bad = (
        ["nanoinfer/llm.py", "nanoinfer", "https://no.where"],
        ["no.md", "nanoinfer/no.py", "#nowhere", "index.md#no"],
    )
    text = "\n".join(f"[{i}]({link})" for i, link in enumerate([*good, *bad]))
    (tmp_path / "pages/index.md").write_text(f"# Title\n\n{text}\n")
    assert run(tmp_path, "html", "en") == 1
    assert re.findall("not found.*: '(.*?)'", capfd.readouterr().err) == ["no.md", "nanoinfer/no.py", "nowhere", "no"]


@pytest.mark.parametrize("page", TRANSLATED)
def test_a_catalogue_has_every_text_of_its_page(page: str, texts: dict[str, set[str]]) -> None:
    with (PO / f"{page}.po").open("rb") as file:
        entries = [entry for entry in pofile.read_po(file) if entry.id]
    if not any(entry.string for entry in entries):
        pytest.skip(f"nobody has begun to translate {page}")
    known = {entry.id for entry in entries if entry.string and not entry.fuzzy}
    assert texts[page] - known == set(), "translate these; python -m notebooks.site --catalogues adds what is new"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """What Sphinx would translate, by page."""
    folder = templates(tmp_path_factory.mktemp("texts"))
    found = {}
    for page in TRANSLATED:
        with (folder / f"{page}.pot").open("rb") as file:
            found[page] = {entry.id for entry in pofile.read_po(file) if entry.id}
    return found


def test_each_page_says_its_language_and_leads_to_the_other(pages: dict[str, BeautifulSoup]) -> None:
    for name, page in pages.items():
        chinese = name.startswith("zh/")
        assert page.html["lang"] == ("zh-CN" if chinese else "en"), name
        if page.select(".about"):
            (other,) = page.select(".about a[hreflang]")
            assert other["hreflang"] == ("en" if chinese else "zh-CN"), name
            is_english = name.removeprefix("zh/") not in {*TRANSLATED, "notebooks/short_way"}
            assert bool(page.select("article div[lang=en]")) == (chinese and is_english), name


def test_every_page_at_two_widths_in_two_themes(
    pages: dict[str, BeautifulSoup], address: str, browser: "Chrome"
) -> None:
    wrong = []
    screens = [(PHONE, True), (LAPTOP, False)]
    for name in pages:
        browser.get(f"{address}/{name}.html")
        for (width, height), dark in screens:
            emulate(browser, width, height, dark=dark, touch=width < 600)
            inner, is_wide, missing, colour = browser.execute_script("""
                const missing = [...document.images].filter((image) => image.complete && !image.naturalWidth);
                const page = document.documentElement;
                return [innerWidth, page.scrollWidth > page.clientWidth, missing.map((image) => image.src),
                  getComputedStyle(document.body).backgroundColor];""")
            is_dark = sum(map(int, re.findall("[0-9]+", colour)[:3])) < 300
            if inner != width or is_wide or missing or is_dark != dark:
                wrong.append((name, width, dark, inner, is_wide, missing, colour))
        screens.reverse()  # the next page begins on the screen that is there
        wrong += [(name, each["message"]) for each in browser.get_log("browser")]
    assert wrong == []


def test_a_figure_loads_when_it_is_scrolled_to_and_is_as_high_as_it_must(address: str, browser: "Chrome") -> None:
    for (width, height), dark in ((PHONE, True), (LAPTOP, False)):
        with device(browser, width, height, dark=dark):
            browser.get(f"{address}/notebooks/00_start_here.html")
            urls = "return [...document.querySelectorAll('iframe')].map((frame) => frame.contentDocument.URL)"
            assert set(browser.execute_script(urls)) == {"about:blank"}
            until(
                lambda: browser.execute_script("""
                    const frame = document.querySelector("iframe");
                    frame.scrollIntoView();
                    const page = frame.contentDocument.documentElement;
                    return page?.querySelector("main") && page.scrollHeight === page.clientHeight;"""),
                "the figure at its height",
            )
            query = "frames[0].matchMedia('(prefers-color-scheme: dark)').matches"
            assert browser.execute_script(f"return {query}") == dark


def test_search_finds_words_of_both_languages(address: str, browser: "Chrome") -> None:
    wanted = {
        "search.html?q=radix cache": "notebooks/08_radix_cache.html",
        "search.html?q=eviction": "",
        "search.html?q=goodput": "notebooks/glossary.html#word-goodput",
        "zh/search.html?q=内存": "zh/notebooks/05_memory_pools.html",
    }
    results = "return [...document.querySelectorAll('#search-results li a')].map((link) => link.href)"
    for query, page in wanted.items():
        browser.get(f"{address}/{query}")
        found = until(lambda: browser.execute_script(results), query)
        assert any(url.startswith(f"{address}/{page}") for url in found[:3]), query


@needs_axe
def test_axe_finds_nothing(address: str, browser: "Chrome") -> None:
    found = []
    for name, ((width, height), dark) in zip(LOOKED_AT, cycle([(PHONE, True), (LAPTOP, False)]), strict=False):
        browser.get(f"{address}/{name}.html")
        emulate(browser, width, height, dark=dark, touch=width < 600)
        found += [(name, width, *finding) for finding in axe_findings(browser)]
    assert found == []
