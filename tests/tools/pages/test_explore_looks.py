"""What the pages with sliders say of their colours is so, in light and in dark, and what they show can be told apart."""

import re
from collections.abc import Iterator
from typing import Any

from nanoinfer.viz.palette import PHASE_STYLES
from notebooks.tools.files import ROOT
from tests.tools.pages.test_explore_saved import data_of

FOLDER = ROOT / "notebooks" / "explorables"
SAMPLING, ROOFLINE = ((FOLDER / f"{name}.html").read_text(encoding="utf-8") for name in ("sampling", "roofline"))


def every_object_in(data: Any) -> Iterator[dict[str, Any]]:
    if isinstance(data, dict):
        yield data
    for each in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from every_object_in(each)


def whole(value: Any, parts: list[Any]) -> Any:
    """Data of a page, with the parts that it names by their number."""
    if isinstance(value, list):
        return [whole(each, parts) for each in value]
    if isinstance(value, dict):
        return whole(parts[value["$"]], parts) if "$" in value else {k: whole(v, parts) for k, v in value.items()}
    return value


def test_sampling_names_no_colour_and_its_bars_have_one_for_dark_mode() -> None:
    intro = re.search(r"<header>.*?</header>", SAMPLING, re.DOTALL)
    assert intro is not None
    assert not re.search("orange|grey|red|blue", intro[0].lower().replace("temperature", ""))
    dark = re.search(r"@media \(prefers-color-scheme: dark\) \{.*?\n\}", SAMPLING, re.DOTALL)
    assert dark is not None
    assert ".o-bar {" in dark[0]


def test_sampling_breaks_no_line_inside_top_k() -> None:
    title = re.search(r"<h1>(.*?)</h1>", SAMPLING)
    assert title is not None
    assert "top\u2011k and top\u2011p" in title[1]


def test_roofline_begins_where_its_points_are_apart_and_its_series_have_different_colours() -> None:
    data = data_of(ROOFLINE)
    series = [each for each in every_object_in(data) if "dots" in each]
    front = {each["label"]: each["colour"] for each in series if not each["pale"]}
    decode, extend = (next(c for label, c in front.items() if label.startswith(mode)) for mode in ("DECODE", "EXTEND"))
    roofs = {colour for label, colour in front.items() if "passes" not in label}
    assert len({decode, extend, *roofs}) == 3
    start = data["controls"][0]["start"]
    marks = [
        panel["marks"]
        for frame in data["frames"]
        for panel in frame["panels"]
        if panel.get("marks") and f"T = {data['controls'][0]['labels'][start]}," in frame["sentence"]
    ]
    assert marks
    for first, second in marks:
        assert max(first["x"], second["x"]) > 1.3 * min(first["x"], second["x"])


def test_roofline_marks_look_like_the_passes_that_they_are_of() -> None:
    data = data_of(ROOFLINE)
    charts = [each for each in every_object_in(whole(data["frames"], data["parts"])) if each.get("marks")]
    assert charts
    for chart in charts:
        looks = [chart["series"][mark["of"]] for mark in chart["marks"]]
        assert [each["label"].split()[0] for each in looks] == [mark["text"] for mark in chart["marks"]]
        assert [each["squares"] for each in looks] == [False, True]


def test_roofline_has_the_colours_that_decode_and_extend_have_in_pictures() -> None:
    faces = {each["label"].split()[0]: each["face"] for each in every_object_in(data_of(ROOFLINE)) if each.get("dots")}
    assert faces == {mode: PHASE_STYLES[mode.lower()].face for mode in ("DECODE", "EXTEND")}


def test_roofline_says_once_that_its_machine_was_measured() -> None:
    data = data_of(ROOFLINE)
    said = [each["label"] for each in every_object_in(data) if "dots" in each] + data["controls"][1]["labels"]
    assert [text for text in said if "measured" in text]
    assert not [text for text in said if text.count("measured") > 1]
