"""The site: `python -m notebooks.site OUT` builds it, in English at OUT and in Chinese at OUT/zh. No notebook is run.

`--catalogues` brings the texts of the translated pages in notebooks/locale up to date instead.
"""

import argparse
import base64
import gc
import html
import re
import shutil
import sys
import tempfile
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

from sphinx.cmd.build import build_main
from sphinx_intl.basic import update

from notebooks.site.conf import LOCALE, PO, ROOT, TRANSLATED, slug
from notebooks.tools.files import as_text, read, set_source, source_of

HERE = Path(__file__).parent
PAGES = (
    *("README.md", "notebooks/*.md", "notebooks/[eh]*/*.md", "notebooks/site/*.md", "data/*.md", "data/bench/*.md"),
    *("notebooks/*.ipynb", "notebooks/demos/*.ipynb"),
)
BESIDE = ("data/trace/example.*", "data/trace/*.gif", "data/bench/*.png", "notebooks/explorables/*.html")
TREES = {  # what is below a page, in the bar on the left
    "index": [
        "Notebooks <notebooks/README>",
        "Teaching <notebooks/teaching>",
        "Interactive figures <notebooks/explorables/README>",
        "Handbook <notebooks/handbook/usage>",
        "notebooks/site/api",
        "data/bench/README",
        "Glossary <notebooks/glossary>",
    ],
    "notebooks/README": ["00_*", "short_way", "[0-2]?_*", "demos/*"],
    "notebooks/handbook/usage": ["structured_output", "server", "cache", "cluster", "*"],
    "data/bench/README": ["cluster", "../README"],
}
FRAME = re.compile(r'(?:<style>[^<]*</style>)?<iframe(?: class="interactive")? srcdoc="([^"]*)" sandbox="[^"]*"')
IMAGE = re.compile(r'<img([^>]*?) width="(\d+)"[^>]*? src="data:image/png;base64,([^"]*)">')
FOLDED = re.compile(r"<details><summary>(.*?)</summary>\n(.*?)</details>", re.DOTALL)
FRAGMENT = re.compile(r"(?<=\]\()(?!https?:)([^)\s#]*#)([^)\s]+)(?=\))")
SHORT_WAY = re.compile(r"^##(# A short way through.*?)\n\nThere are three demos", re.DOTALL | re.MULTILINE)
PLAYER = '<iframe src="data/trace/example.html" title="The run above, step by step" loading="lazy"></iframe>'


def stage(folder: Path, only: Collection[str] = ()) -> None:
    """Write into `folder` what Sphinx reads: all pages, or those named, as they lie in the repository; in `folder`/extra
    what they embed."""
    for source in (path for pattern in BESIDE for path in ROOT.glob(pattern)):
        for target in (folder, folder / "extra"):
            place = target / source.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, place)
    for source in (path for pattern in PAGES for path in ROOT.glob(pattern)):
        page = Path("index.md") if source == ROOT / "README.md" else source.relative_to(ROOT)
        name = page.with_suffix("").as_posix()
        if only and name not in only:
            continue
        target = folder / page
        target.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix == ".ipynb":
            notebook = read(source)
            change(notebook, page.name, folder / "extra" / page.parent)
            text = as_text(notebook)
            for way in filter(None, (SHORT_WAY.search(source_of(cell)) for cell in notebook["cells"])):
                (target.parent / "short_way.md").write_text(way[1] + "\n", encoding="utf-8")
        else:
            text = markdown(source.read_text(encoding="utf-8"), page.name)
            if name in TREES:
                text += "\n```{toctree}\n:hidden:\n:glob:\n" + "\n".join(TREES[name]) + "\n```\n"
        if name == "index":
            text = text.replace("\n## ", f"\n{PLAYER}\n\n## ", 1)
        target.write_text(text, encoding="utf-8")


def markdown(text: str, page: str) -> str:
    """Links lead to the headings that MyST names, and `page` itself is named, for a text that another page shows, too."""
    return FRAGMENT.sub(lambda link: (link[1] if link[1] != "#" else f"{page}#") + slug(link[2]), text)


def folded(answer: re.Match[str]) -> str:
    """What is folded on GitHub as an admonition, so that Sphinx knows its summary as a text."""
    summary = re.sub(r"</?code>", "`", re.sub(r"</?(i|em)>", "*", " ".join(answer[1].split())))
    return f"::::{{admonition}} {html.unescape(summary)}\n:collapsible: closed\n{answer[2]}\n::::"


def change(notebook: dict[str, Any], page: str, beside: Path) -> None:
    """In place: texts for MyST, imports folded, pictures and figures as files in `beside`/figures that load when seen."""

    def file(content: bytes, suffix: str) -> str:
        name = f"figures/{sha256(content).hexdigest()[:16]}{suffix}"
        (beside / "figures").mkdir(parents=True, exist_ok=True)
        (beside / name).write_bytes(content)
        return name

    def picture(image: re.Match[str]) -> str:
        content = base64.b64decode(image[3])
        width, height = (int.from_bytes(content[at : at + 4]) for at in (16, 20))  # of a PNG
        size = f'width="{image[2]}" height="{int(image[2]) * height // width}"'
        name = file(content, ".png")
        return f'<a href="{name}"><img{image[1]} {size} src="{name}" loading="lazy"></a>'

    def frame(iframe: re.Match[str]) -> str:
        return f'<iframe src="{file(html.unescape(iframe[1]).encode(), ".html")}" loading="lazy"'

    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            set_source(cell, FOLDED.sub(folded, markdown(source_of(cell), page)))
            continue
        if cell["metadata"].get("jupyter", {}).get("source_hidden"):
            cell["metadata"]["tags"] = ["hide-input"]
        shown = ""
        for output in list(cell["outputs"]):
            data, about = output.get("data", {}), output.get("metadata", {}).get("image/png", {})
            if png := data.pop("image/png", None):
                if "<iframe" in shown:  # its still
                    cell["outputs"].remove(output)
                alt = html.escape(about.get("alt", "".join(data["text/plain"])))
                data["text/html"] = f'<img alt="{alt}" width="{about["width"]}" src="data:image/png;base64,{png}">'
            if shown := "".join(data.get("text/html", "")):
                data["text/html"] = FRAME.sub(frame, IMAGE.sub(picture, shown))


def run(folder: Path, builder: str, language: str) -> int:
    """Sphinx's exit status; a warning is an error. From `folder`/pages into `folder`/`language`/`builder`."""
    pages, work = folder / "pages", folder / language
    settings = {"html_extra_path": pages / "extra", "locale_dirs": folder / "locale", "language": language}
    said = "-qW" if builder == "html" else "-Q"  # the templates are of some pages only, whose links lead nowhere
    where = [f"-b{builder}", f"-c{HERE}", f"-d{work / 'doctrees'}", str(pages), str(work / builder)]
    return build_main([said, *(f"-D{name}={value}" for name, value in settings.items()), *where])


def templates(folder: Path) -> Path:
    """A folder with a template (.pot) for each translated page: the texts that Sphinx finds in it now."""
    stage(folder / "pages", TRANSLATED)
    run(folder, "gettext", "en")
    (folder / "en/gettext/notebooks/short_way.pot").unlink()  # its texts are 00's
    return folder / "en/gettext"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m notebooks.site", description=__doc__.split("\n", 1)[0])
    parser.add_argument("out", type=Path, nargs="?", help="the folder of the site")
    parser.add_argument("--catalogues", action="store_true", help="bring notebooks/locale up to date instead")
    options = parser.parse_args(arguments)
    if (options.out is None) is not options.catalogues:
        parser.error("either a folder or --catalogues")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if options.catalogues:
            update(str(LOCALE), str(templates(folder)), ["zh_CN"], line_width=120, ignore_obsolete=True)
            return 0
        stage(folder / "pages")
        shutil.copytree(LOCALE, folder / "locale")
        staged_po = folder / "locale" / PO.relative_to(LOCALE) / "notebooks"
        shutil.copyfile(staged_po / "00_start_here.po", staged_po / "short_way.po")
        places = {"en": options.out, "zh_CN": options.out / "zh"}
        with ProcessPoolExecutor(initializer=gc.disable) as pool:  # pages live until the end: a third of the time
            failed = any(pool.map(run, [folder] * 2, ["html"] * 2, places))
        for language, place in places.items():
            shutil.copytree(folder / language / "html", place, dirs_exist_ok=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
