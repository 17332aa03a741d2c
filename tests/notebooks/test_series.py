"""The series as a whole: links that lead somewhere, names shown before they are used, openings, questions, references."""

import re
from pathlib import Path
from typing import Any

import pytest

from notebooks.tools.course import (
    IMPORTS,
    all_problems,
    broken_links,
    ending_problems,
    folding_problems,
    import_problems,
    noise,
    opening_problems,
    question_problems,
)
from notebooks.tools.files import ROOT, read, source_of, sources
from notebooks.tools.names import package_names, shown, used, used_before_shown
from notebooks.tools.series import (
    MOST_IMPORTS,
    anchors,
    folded,
    headings,
    links,
    markdown_texts,
    needed_from_folded_parts,
    series,
    slug,
)
from notebooks.tools.tidy import tidy
from tests.sample_series import code, markdown, notebook, save

FOLDER = ROOT / "notebooks"
SERIES = series(FOLDER)
DEMOS = sorted((FOLDER / "demos").glob("*.ipynb"))
PAGES = [ROOT / "README.md", FOLDER / "README.md", FOLDER / "glossary.md"]
FIRST_ENGINE = "an_engine_in_150_lines"

# Names that package cells use and no notebook shows, and why no notebook needs to.
ALLOWED = {
    "broken": "says why a runner can make no more passes; only one whose model is split over processes ever is",
    "hidden_size": "a field of the checkpoint's config.json, whose name says what it is",
    "intermediate_size": "a field of the checkpoint's config.json, whose name says what it is",
    "num_attention_heads": "a field of the checkpoint's config.json, whose name says what it is",
    "num_key_value_heads": "a field of the checkpoint's config.json, whose name says what it is",
    "num_hidden_layers": "a field of the checkpoint's config.json, whose name says what it is",
    "vocab_size": "a field of the checkpoint's config.json, whose name says what it is",
    "kind": "numpy's: what kind of numbers an array has",
    "raised_by_handler": "whether a signal's handler raised an exception, as its name says",
    "_proposal_costs": "the seconds that a drafter's proposals took, by how many drafts each request gets",
    "rms_norm_eps": "a field of the checkpoint's config.json, whose name says what it is",
}


def first_engine() -> dict[str, Any] | None:
    """The notebook whose lines the others show, once it is there."""
    found = [path for path in SERIES if slug(path) == FIRST_ENGINE]
    return read(found[0]) if found else None


# --- the notebooks keep the rules -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*SERIES, *DEMOS], ids=lambda path: str(path.stem))
def test_links_of_a_notebook_lead_somewhere(path: Path) -> None:
    problems = broken_links(path, markdown_texts(read(path)))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(path: Path) -> None:
    problems = broken_links(path, [path.read_text(encoding="utf-8")])
    assert not problems, "\n".join(problems)


def test_a_notebook_has_its_opening_questions_and_references_and_no_noise() -> None:
    engine = first_engine()
    problems = [problem for path in SERIES for problem in all_problems(path, read(path), engine)]
    assert not problems, "\n".join(problems)


def test_the_page_for_those_who_change_a_notebook_speaks_of_one_notebook_all_the_way() -> None:
    section = (FOLDER / "README.md").read_text("utf-8").partition("## To change a notebook")[2].partition("\n## ")[0]
    named = set(re.findall(r"(\d\d)_memory_pools", section))
    assert set(re.findall(r"(?:notebooks\.build|-k) (\d\d)", section)) == named == {"05"}
    assert set(re.findall(r"(?:checks/nb|`nb)(\d\d)", section)) == named
    assert {f"{int(id):02}" for id in re.findall(r"(?:exercise-|check-|attempt\(\")(\d+)\.", section)} == named


def test_the_page_says_which_notebooks_are_their_own_source() -> None:
    text = " ".join((FOLDER / "README.md").read_text("utf-8").split())
    said = re.search(r"without solutions \(([\d, ]+), `demos/`\) is its own source", text)
    own = [path.stem[:2] for path in sources(ROOT) if path.parent == FOLDER]
    assert said is not None
    assert said[1].split(", ") == own


def test_no_package_cell_uses_a_name_before_the_notebook_that_shows_it() -> None:
    found = used_before_shown([(slug(path), read(path)) for path in SERIES], ROOT, ALLOWED)
    problems = [f"{name}: {problem}" for name, each in found.items() for problem in each]
    assert not problems, "\n".join(
        [
            *problems,
            "Show it, or say in a sentence what it is (`like_this`), or say in ALLOWED why no reader needs to know",
        ]
    )


def test_the_readers_functions_stay_the_same_from_one_notebook_to_the_next() -> None:
    cells = {
        slug(path): [source_of(cell) for cell in read(path)["cells"] if cell["cell_type"] == "code"] for path in SERIES
    }
    (functions,) = [text for text in cells["the_kv_cache"] if text.startswith("network = llm.model.model")]
    (cache,) = [text for text in cells["the_kv_cache"] if text.startswith("class Cache:")]
    for later in ("batched_decode", "memory_pools"):
        assert functions in cells[later], later
    assert cache in cells["batched_decode"]
    assert cache[cache.index("@torch.no_grad()") :] in cells["memory_pools"], "next_token works with a PooledCache, too"


def test_every_name_that_is_allowed_is_used_somewhere_and_has_a_reason() -> None:
    everything = {name for path in SERIES for name in used(read(path), ROOT)}
    assert set(ALLOWED) <= everything
    assert all(reason.strip() for reason in ALLOWED.values())


@pytest.mark.parametrize("path", [*SERIES, *DEMOS], ids=lambda path: str(path.stem))
def test_a_reader_who_skips_the_folded_parts_can_go_on(path: Path) -> None:
    problems = needed_from_folded_parts(read(path))
    assert not problems, "\n".join(problems)


def promised() -> dict[str, int]:
    """Minutes that the map of the series promises, by the number of the notebook."""
    start_here = "\n".join(markdown_texts(read(SERIES[0])))
    return {row[0]: int(row[1]) for row in re.findall(r"^\| \[(\d\d) .*? \| (\d+) \| ", start_here, re.MULTILINE)}


def test_a_notebook_promises_the_minutes_that_the_map_promises() -> None:
    assert list(promised()) == [path.stem[:2] for path in SERIES[1:]]
    for path in SERIES[1:]:
        opening = " ".join(markdown_texts(read(path))[0].split())
        said = re.search(r"\*\*Time:\*\* (?:about )?(\d+) minutes", opening)
        assert said is not None, path.name
        assert int(said[1]) == promised()[path.stem[:2]], path.name


HOURS = ("fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty")
HOURS += ("twenty-one", "twenty-two", "twenty-three", "twenty-four", "twenty-five", "twenty-six")


def minutes_of_exercises(number: str) -> int:
    """What the head of a notebook promises for its exercises; 0 if it has none."""
    opening = " ".join(markdown_texts(read(SERIES[int(number)]))[0].split())
    _, _, said = opening.partition("**Time:**")
    if re.search(r"as long again", said):
        return promised()[number]
    found = re.search(r"and (an hour|\d+)(?: more)? for the exercises|the exercises take another (\d+)", said)
    if found is None:
        return 0
    return 60 if found[1] == "an hour" else int(found[1] or found[2])


def test_the_map_adds_up_the_minutes_of_reading_and_of_the_exercises() -> None:
    text = " ".join(" ".join(markdown_texts(read(SERIES[0]))).split())
    said = re.search(
        r"with the questions: about ([a-z-]+) hours in all\. The exercises take about ([a-z-]+) hours more", text
    )
    assert said is not None
    reading, exercises = promised(), {number: minutes_of_exercises(number) for number in promised()}
    assert [number for number, minutes in exercises.items() if not minutes] == ["01", "02"]
    for name, minutes in ((said[1], reading), (said[2], exercises)):
        assert abs(15 + HOURS.index(name) - sum(minutes.values()) / 60) <= 0.5


def test_the_short_way_names_sections_in_their_order_and_takes_three_hours() -> None:
    text = "\n".join(markdown_texts(read(SERIES[0]))).partition("### A short way through, in three hours")[2]
    row = r"^\| (\d\d) \| \[(.+?)\]\((.*?)#.+?\) \| \[(.+?)\]\((.*?)#.+?\) \| (\d+) \|$"
    parts = re.findall(row, text, re.MULTILINE)
    assert [number for number, *_ in parts] == ["00", "01", "03", "05", "06", "07", "08", "10"]
    for number, first, start, last, end, _ in parts:
        path = SERIES[int(number)]
        titles = [title for part in markdown_texts(read(path)) for _, title in headings(part)]
        assert {start, end} == {"" if number == "00" else path.name}
        assert titles.index(first) <= titles.index(last), number
    assert sum(int(minutes) for *_, minutes in parts) == 180


# --- and the rules find what breaks them ----------------------------------------------------------------------------


def test_links_and_headings_are_found_and_those_in_code_are_not(tmp_path: Path) -> None:
    text = "# A *b* `c`\n[x](y.md#z) ![p](p.png) `[no](no.md)`\n\n```md\n# no\n[no](no.md)\n```\n## D\n<a href='e.md'>e</a>"
    assert headings(text) == [(1, "A *b* `c`"), (2, "D")]
    assert links(text) == ["y.md#z", "e.md", "p.png"]
    assert links('[a](b.md "title") [c [d]](<e.md>)') == ["b.md", "e.md"]
    page = tmp_path / "page.md"
    page.write_text("# How, *then*?\n## Twice\n## Twice\n## `a_b` & c")
    assert anchors(page) == {"how-then", "twice", "twice-1", "a_b--c"}
    path = save(tmp_path, "90_sample.ipynb", notebook(markdown("# 90 · What?\n\n## The `code`: **one**")))
    assert anchors(path) == {"90-·-What?", "The-code:-one"}


def test_links_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    path = save(tmp_path, "90_sample.ipynb", notebook(markdown("## A part")))
    text = (
        "[a](90_sample.ipynb) [b](90_sample.ipynb#A-part) [c](#A-part) [d](https://no.where) [e](#a%20part) [f](no.md) "
        "[g](90_sample.ipynb#B-part)"
    )
    assert broken_links(path, [text]) == [
        "90_sample.ipynb: link to #a%20part: 90_sample.ipynb has no such heading",
        "90_sample.ipynb: link to no.md: there is no such file",
        "90_sample.ipynb: link to 90_sample.ipynb#B-part: 90_sample.ipynb has no such heading",
    ]


ENGINE = [f"line_{i} = {i}" for i in range(12)]


def opening(lines: list[str], *more: dict[str, Any]) -> list[str]:
    block = "\n".join(["What was there:", "```python", *lines, "```"])
    return opening_problems(notebook(markdown(block), *more), notebook(code("\n".join(ENGINE))))


def test_an_opening_shows_lines_of_the_first_engine_letter_for_letter_and_the_map() -> None:
    here = code('viz.engine_map(here="pools")')
    assert opening(ENGINE[1:11], here) == []
    assert opening(["# in between", *ENGINE[1:11]], here) != [], "one line is not of the engine"
    assert opening([*ENGINE[:5], *ENGINE[6:]], here) != [], "a line is left out"
    assert opening([line + " " for line in ENGINE], here) != []
    assert opening(ENGINE[:2], here) == ["shows 2 lines of the first engine: 6 to 16 are enough"]
    assert opening(ENGINE, code("viz.engine_map()")) == ["its first 8 cells have no viz.engine_map(here=...)"]
    assert opening(ENGINE, *[code("pass")] * 8, here) != [], "too far down"


def test_a_notebook_ends_with_references() -> None:
    two = "[a](https://a.org) and [b](https://b.org)"
    assert ending_problems(notebook(markdown("# T"), markdown(f"## References\n{two}"))) == []
    assert ending_problems(notebook(markdown(f"## Summary\n{two}\n## References\n[a](https://a.org)"))) == [
        "References: has 1 links: must have at least 2"
    ]
    assert ending_problems(notebook(markdown(f"## References\n{two}"), markdown("## More"))) == [
        "ends with the section 'More': must be References"
    ]


def test_sections_have_questions_whose_answers_unfold() -> None:
    question = "<details><summary>Why?</summary>\n\nBecause.\n</details>\n"
    title, parts = markdown("# T"), [markdown(f"## Part {i}") for i in range(4)]
    assert question_problems(notebook(title, *parts)) == [
        "0 questions with folded answers in 4 sections: must be half as many",
        "0 questions with folded answers in 'Part 3': must be 2 at the end",
    ]
    assert question_problems(notebook(title, *parts, markdown(question), markdown(question))) == []
    assert question_problems(notebook(title, *parts, markdown(question), markdown(f"## Summary\n{question}"))) == []
    early = question_problems(notebook(title, markdown(f"## Part\n{question}{question}"), *parts))
    assert early == [
        "2 questions with folded answers in 5 sections: must be half as many",
        "0 questions with folded answers in 'Part 3': must be 2 at the end",
    ]
    ends = [markdown(f"## {name}") for name in ("Exercises", "May be skipped: more", "References")]
    assert question_problems(notebook(title, parts[0], markdown(question * 2), *ends)) == []


def test_noise_in_outputs_is_found_unless_the_cell_is_there_to_show_it() -> None:
    loud = code("x")
    loud["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["Traceback (most recent call last)\n"]}]
    assert noise(notebook(loud)) == ["cell 1: the output says 'Traceback (most recent call last)'"]
    loud["metadata"] = {"tags": ["raises-exception"]}
    assert noise(notebook(loud)) == []


POOL = (
    "# in nanoinfer/cache/memory_pool.py\nclass ReqToTokenPool:\n"
    "    def alloc(self, n):\n        return self.check_integrity(n.kv_len)"
)


def test_a_name_of_the_package_is_shown_in_the_notebook_that_uses_it_or_before() -> None:
    assert {"check_integrity", "kv_len", "RadixCache"} <= package_names(ROOT)
    assert {"append", "shape", "self", "copy"}.isdisjoint(package_names(ROOT))
    uses = notebook(code(POOL))
    assert used(uses, ROOT) == {"check_integrity": 1, "kv_len": 1}
    assert used_before_shown([("one", uses)], ROOT, {}) == {
        "one": ["cell 1 uses `check_integrity`", "cell 1 uses `kv_len`"]
    }
    assert used_before_shown([("one", uses)], ROOT, {"kv_len": "why"}) == {"one": ["cell 1 uses `check_integrity`"]}
    shows = notebook(markdown("`kv_len` is how many tokens have K/V; kv_len."), code("def check_integrity(): ..."))
    assert used_before_shown([("zero", shows), ("one", uses)], ROOT, {}) == {}
    assert "kv_len" not in shown(notebook(markdown("kv_len"))), "as a word, it is not shown"
    later = used_before_shown([("one", uses), ("two", shows)], ROOT, {})
    assert set(later) == {"one"}


def test_a_file_of_the_course_has_names_to_show_as_well() -> None:
    source = (
        "# in notebooks/course/regular_expression.py\ndef f(self): return derivative(matches_empty(self), any_other)"
    )
    assert used(notebook(code(source)), ROOT) == {"derivative": 1, "matches_empty": 1}
    assert {"derivative", "matches_empty"}.isdisjoint(package_names(ROOT))


def test_what_an_annotation_names_is_not_used() -> None:
    text = (
        "# in nanoinfer/cache/memory_pool.py\n"
        "def f(tree: RadixCache) -> TreeNode:\n    x: MatchResult = tree\n    return x"
    )
    assert used(notebook(code(text)), ROOT) == {}


def test_a_part_that_may_be_skipped_opens_folded_up_to_the_next_heading_of_its_level() -> None:
    cells = [
        "## One",
        "## May be skipped: details",
        "### Inside",
        "text",
        "## Two",
        "### May be skipped: this",
        "# End",
    ]
    content = notebook(*map(markdown, cells), markdown("see\n## May be skipped: not at the top of its cell"))
    assert folded(content) == [False, True, True, True, False, True, False, False]
    tidy(content)
    collapsed = [cell["metadata"].get("jp-MarkdownHeadingCollapsed", False) for cell in content["cells"]]
    assert collapsed == [False, True, False, False, False, True, False, False]
    content["cells"][1]["source"] = ["## Not skipped"]
    tidy(content)
    assert content["cells"][1]["metadata"] == {}


def test_a_part_that_cannot_be_folded_is_named() -> None:
    good = [markdown("## May be skipped: one\ntext"), markdown("### May be skipped: two")]
    assert folding_problems(notebook(*good)) == []
    bad = ["text\n## May be skipped: three", "## On\n### May be skipped: four", "# May be skipped: five"]
    assert [problem.split(":")[0] for problem in folding_problems(notebook(*good, *map(markdown, bad)))] == [
        "cell 3",
        "cell 4",
        "cell 5",
    ]


def test_a_long_list_of_imports_is_a_folded_cell_that_says_what_it_is() -> None:
    several = "\n".join(f"import a{i}" for i in range(MOST_IMPORTS))
    cells = {
        "few": f"{several}\nprint(a0)",
        "a list over lines": "from a import (\n" + "    b,\n" * MOST_IMPORTS + ")\nprint(b)",
        "too many": f"{several}\nimport b\nprint(b)",
        "alone": f"{several}\nimport b",
        "alone, and named": f"{IMPORTS} what the code below uses\n{several}\nimport b",
        "magic": f"%matplotlib inline\n{several}\nimport b",
        "package": f"# in nanoinfer/a.py\n{several}",
    }
    content = notebook(*map(code, cells.values()))
    assert [problem.split(":")[0] for problem in import_problems(content)] == [f"cell {i}" for i in (2, 3, 4, 4, 5)]
    tidy(content)
    hidden = [cell["metadata"].get("jupyter", {}).get("source_hidden", False) for cell in content["cells"]]
    assert hidden == [name.startswith("alone") for name in cells]
    assert [problem.split(":")[0] for problem in import_problems(content)] == ["cell 2", "cell 3", "cell 4"]
    assert import_problems(notebook(markdown(cells["too many"]))) == []


def test_what_only_a_folded_part_defines_is_not_used_outside() -> None:
    cells = (
        markdown("## May be skipped: it"),
        code("a = b = 1\nprint(a)"),
        markdown("## On"),
        code("b = 2\nprint(a, b)"),
    )
    assert needed_from_folded_parts(notebook(*cells)) == ["cell 4 uses `a`, which only a folded part defines"]
    assert needed_from_folded_parts(notebook(code("a = 0"), *cells)) == []
