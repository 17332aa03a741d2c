"""Sphinx's configuration of the site, and what it does to pages beyond what Sphinx and its extensions do."""

import os
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils import new_document
from latex2mathml.converter import convert
from myst_nb.sphinx_ import Parser
from myst_parser.mdit_to_docutils.base import default_slugify as slug
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective

REPOSITORY = os.environ.get("REPOSITORY", "https://github.com/nanoinfer/nanoinfer")  # where files that are no pages are
ROOT = Path(__file__).parents[2]
LOCALE = ROOT / "notebooks" / "locale"
PO = LOCALE / "zh_CN" / "LC_MESSAGES"
# The pages with a catalogue: a test compares it with their texts.
TRANSLATED = sorted(path.relative_to(PO).with_suffix("").as_posix() for path in PO.rglob("*.po"))
TIME = re.compile(r'\*\*Time:\*\*[\s\\n",]*([0-9]+)[\s\\n",]+minutes')  # in a notebook's JSON, with ends of lines
WORDS_PER_MINUTE = 200
WORD = re.compile(r"^\| (?!word \||---)(.+?) \| (.+?) \|", re.MULTILINE)
# Words of the glossary that texts use too often in another sense.
EVERYDAY = {"block", "key", "page", "reader", "replay", "run", "session", "state", "step", "ticks", "turn", "value"}
SUBJECT = re.compile(r"\[\d\d (.+?)\]\((\w+)\.ipynb\)")  # of a notebook, in the list of them
SPLIT = r"(?=([\u4e00-\u9fff]{2}))|[a-zA-Z0-9_]+"
RUN = ("python3 -m venv .venv && .venv/bin/pip install -r requirements.txt -e .", ".venv/bin/jupyter lab {}")
TEXTS = {  # of the line above each page: minutes, the way to run it, and the other language: its name, code and place
    "en": ("{} min", "Run this notebook", "In a clone of the repository:", "中文", "zh-CN", "zh/"),
    "zh_CN": ("阅读约 {} 分钟", "运行这个 notebook", "克隆仓库后，在其目录中执行：", "English", "en", "../"),
}

project = "nanoinfer"
extensions = ["myst_nb", "sphinx.ext.autodoc"]
exclude_patterns = ["extra"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "off"
nb_merge_streams = True
nb_code_prompt_show = nb_code_prompt_hide = "Imports"
nitpicky = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"
gettext_compact = gettext_location = False
gettext_last_translator = gettext_language_team = ""
html_theme = "furo"
html_math_renderer = "mathml"  # which browsers draw without a script
html_title = "nanoinfer"
html_favicon = "static/favicon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_copy_source = False
html_show_copyright = False
html_search_language = "zh"  # SearchChinese, below: English words are found, too


def source_of(docname: str) -> str:
    """The file of the repository that a page is made from, relative to its root."""
    names = {"index": "README.md", "notebooks/short_way": "notebooks/00_start_here.ipynb"}
    candidates = (names.get(docname, ""), f"{docname}.ipynb", f"{docname}.md")
    return next(name for name in candidates if (ROOT / name).is_file())


def write_math(translator: Any, node: nodes.math | nodes.math_block) -> None:
    """A formula as MathML."""
    translator.body.append(convert(node.astext(), display="block" if isinstance(node, nodes.math_block) else "inline"))
    raise nodes.SkipNode


class Links(SphinxTransform):
    """A link to a file that is no page leads to what lies beside the pages, or to the repository."""

    default_priority = 30  # after translations

    def apply(self, **_: Any) -> None:
        if slugs := getattr(self.document, "myst_slugs", None):  # a translated heading has put its own in their place
            self.env.metadata[self.env.docname]["myst_slugs"] = slugs
        folder = (ROOT / self.env.docname).parent
        links = [*self.document.findall(addnodes.pending_xref), *self.document.findall(addnodes.download_reference)]
        for node in links:
            path, _, fragment = node["reftarget"].partition("#")
            target = Path(os.path.normpath(folder / path))
            if node.get("reftype") != "myst" or node.get("refdomain") == "doc" or not path or not target.exists():
                continue  # Sphinx finds it, or says that it is broken
            name = target.relative_to(ROOT).as_posix()
            if name == "README.md":
                node.attributes |= {"refdomain": "doc", "reftarget": "index", "reftargetid": None}
            elif (Path(self.env.srcdir) / "extra" / name).exists():
                node.replace_self(nodes.reference("", "", *node.children, refuri=node["reftarget"]))
            else:
                uri = (
                    f"{REPOSITORY}/{'tree' if target.is_dir() else 'blob'}/main/{name}{'#' * bool(fragment)}{fragment}"
                )
                node.replace_self(nodes.reference("", "", *node.children, refuri=uri))


class Words(SphinxTransform):
    """The search knows a notebook's subject and the glossary's words. In a page's text, the first use of such a word leads
    to its meaning."""

    default_priority = 31

    def apply(self, **_: Any) -> None:
        glossary, docname = "notebooks/glossary", self.env.docname
        words = {
            name.strip("`"): (slug(words.replace("`", "")), meaning)
            for words, meaning in WORD.findall((ROOT / f"{glossary}.md").read_text(encoding="utf-8"))
            for name in words.split(", ")
        }
        subjects = SUBJECT.findall((ROOT / "notebooks/README.md").read_text(encoding="utf-8"))
        known = [(name, "") for name, page in subjects if docname == f"notebooks/{page}"]
        if docname == glossary:
            for row in self.document.findall(nodes.row):
                row["ids"] = [f"word-{slug(row.children[0].astext())}"]
            known = [(name, f"word-{target}") for name, (target, _) in words.items()]
        self.document += addnodes.index(entries=[("single", *each, "main", None) for each in known])
        if docname == glossary:
            return
        if not docname.startswith("notebooks/") and docname != "index":
            return
        seen = set[str]()
        names = sorted(words.keys() - EVERYDAY, key=len, reverse=True)
        pattern = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, names))})(?:s|es)?(?![\w-])")
        for text in list(self.document.findall(nodes.Text)):
            if not isinstance(text.parent, nodes.paragraph):
                continue
            parts, end = list[nodes.Node](), 0
            for found in pattern.finditer(text):
                target, meaning = words[found[1]]
                if target in seen:
                    continue
                seen.add(target)
                uri = f"{'../' * docname.count('/')}{glossary}.html#word-{target}"
                link = nodes.reference("", found[0], refuri=uri, reftitle=meaning, classes=["word"])
                parts += [nodes.Text(text[end : found.start()]), link]
                end = found.end()
            if parts:
                text.parent.replace(text, [*parts, nodes.Text(text[end:])])


class SearchChinese(SearchEnglish):
    """Each two Chinese characters that are side by side are a word, in pages and in queries."""

    lang = "zh"
    js_splitter_code = (
        f"var splitQuery = (query) => [...query.matchAll(/{SPLIT}/g)].map((found) => found[1] ?? found[0]);"
    )

    def split(self, input: str) -> list[str]:
        return [found[1] or found[0] for found in re.finditer(SPLIT, input)]


class Markdown(SphinxDirective):
    """Its content is Markdown, like our docstrings."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        document = new_document(self.env.docname, self.state.document.settings)
        Parser().parse("\n".join(self.content), document)
        return document.children


def as_markdown(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """The lines of a docstring, for Sphinx."""
    lines[:] = [".. markdown::", "", *(f"   {line}" for line in lines)]


def finish(app: Sphinx, docname: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Above each page: the minutes, its file, the other language, and how to run a notebook."""
    if doctree is None:
        return
    source = source_of(docname)
    minutes, run, where, name, code, place = TEXTS[app.config.language]
    known = TIME.search((ROOT / source).read_text(encoding="utf-8")) if docname in source else None
    count = known[1] if known else max(1, round(len(doctree.astext().split()) / WORDS_PER_MINUTE))
    root = "../" * docname.count("/")
    other = f'<a href="{root}{place}{docname}.html" lang="{code}" hreflang="{code}">{name}</a>'
    file = f'<a href="{REPOSITORY}/blob/main/{source}">{source}</a>'
    line = f'<p class="about">{minutes.format(count)} · {file} · {other}</p>'
    if source.endswith(".ipynb"):
        commands = "\n".join(RUN).format(source)
        line += f'<details class="run"><summary>{run}</summary><p>{where}</p><pre>{commands}</pre></details>'
    if app.config.language != "en" and docname.replace("short_way", "00_start_here") not in TRANSLATED:
        context["body"] = f'<div lang="en">{context["body"]}</div>'
    body = context["body"].replace(' aria-label="Toggle hidden content"', "")  # there is text
    body = re.sub(r"<th [^>]*><p></p></th>", "<td></td>", body)  # the corner of a table is no header
    context["body"] = body.replace("</h1>", f"</h1>{line}", 1)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(Links)
    app.add_transform(Words)
    app.add_search_language(SearchChinese)
    app.add_directive("markdown", Markdown)
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
    app.connect("autodoc-process-docstring", as_markdown)
    app.connect("html-page-context", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
