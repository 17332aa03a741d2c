"""Traces as JSON: a file comes back as it was, and one that is wrong says where."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.trace import Trace, record
from tests.helpers.engines import LetterTokenizer, make_engine, serve


def test_a_saved_trace_comes_back(busy: Trace, tmp_path: Path) -> None:
    busy.save(tmp_path / "a.json")
    loaded = Trace.load(tmp_path / "a.json")
    assert loaded.events == [type(event).from_json(event.to_json()) for event in busy.events]
    assert [request.prompt for request in loaded.requests] == [request.prompt for request in busy.requests]
    assert (loaded.texts, loaded.engine, len(loaded)) == (busy.texts, busy.engine, len(busy))
    assert loaded.describe() == busy.describe()
    loaded.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()
    document = json.loads((tmp_path / "a.json").read_text())
    assert (document["format"], document["version"]) == ("nanoinfer trace", 2)


def test_the_same_run_gives_the_same_file_but_for_times(tmp_path: Path) -> None:
    texts = []
    for i in range(2):
        engine = make_engine(slots=40, schedule_conservativeness=0.1)
        with record(engine) as trace:
            serve(engine, "ABC", "ABD", "XYZW", max_new_tokens=9)
        trace.save(tmp_path / f"{i}.json")
        document = json.loads((tmp_path / f"{i}.json").read_text())
        for entry in (*document["requests"], *document["events"]):
            del entry["time"]
            entry.pop("seconds", None)
        texts.append(json.dumps(document))
    assert texts[0] == texts[1]


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(document: dict[str, Any]) -> None:
        *way, last = path.split(".")
        target: Any = document
        for name in way:
            target = target[int(name)] if isinstance(target, list) else target[name]
        if isinstance(target, list):
            target[int(last)] = value
        elif value is None:
            del target[last]
        else:
            target[last] = value

    return apply


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (change("format", "profile"), '"format": "nanoinfer trace"'),
        (change("version", 4), r"version=4: must be one of 1, 2 and 3"),
        (change("version", 3), "engine: storeys missing"),
        (
            change("events.2.fetched", [[0, 0, 1, 1]]),
            r"events\[2\]: ValueError: fetched \[0, 0, 1, 1\]: must be positions",
        ),
        (change("events.2.fetched", [[0, 0, 1]]), r"events\[2\]: TypeError"),
        (change("version", 1), r"events\[2\]: TypeError: \[70\]: must be int"),
        (change("engine.drafter", None), "engine: drafter missing"),
        (change("events", None), "events: must be present and be a JSON array"),
        (change("requests", {}), "requests: must be present and be a JSON array"),
        (change("engine.page_size", None), "engine: page_size missing"),
        (change("texts.65", 3), "texts: TypeError: 3: must be str"),
        (change("requests.0.prompt", ["A"]), r"requests\[0\]: TypeError: 'A': must be int"),
        (change("requests.0.colour", "red"), r"requests\[0\]: TypeError.*colour"),
        (change("events.2.mode", "GUESS"), r"events\[2\]: ValueError: mode='GUESS': must be one of START, EXTEND"),
        (change("events.2.time", "noon"), r"events\[2\]: ValueError.*noon"),
        (change("events.2.batch", [[0, 1]]), r"events\[2\]: TypeError"),
        (change("events.1.arrived", [7]), r"events\[1\]: IndexError"),
        (change("events.2.tree.0.2", 99), r"events\[2\]: KeyError: 99"),
        (change("events.2.free", 3), r"events\[2\]: RuntimeError: after step 1: 3 free \+ 5 owned, must be 256"),
    ],
)
def test_a_file_that_is_wrong_says_where(spoil: Callable[[dict[str, Any]], None], message: str, tmp_path: Path) -> None:
    engine = make_engine()
    with record(engine) as trace:
        serve(engine, "ABCDE", max_new_tokens=2)
    path = tmp_path / "trace.json"
    trace.save(path)
    document = json.loads(path.read_text())
    spoil(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=message) as caught:
        Trace.load(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[]", b"{}"])
def test_a_file_that_is_no_trace_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.json: (this is not JSON|must be an object)"):
        Trace.load(tmp_path / "x.json")


class ByteTokenizer(LetterTokenizer):
    """A token is a byte: characters beyond ASCII take several."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode("utf-8", errors="replace")


def test_characters_of_several_tokens_are_whole_in_texts() -> None:
    from nanoinfer.requests.token_text import whole_characters

    text = "aé€😀b"
    tokens = list(text.encode())
    decode: Tokenizer = ByteTokenizer()
    texts = {token: decode.decode([token]) for token in tokens}
    pieces = whole_characters(tokens, texts, decode.decode)
    assert "".join(pieces.get(i, texts[token]) for i, token in enumerate(tokens)) == text
    assert pieces == {1: "", 2: "é", 3: "", 4: "", 5: "€", 6: "", 7: "", 8: "", 9: "😀"}


def test_the_committed_example_is_a_trace_in_which_everything_happens() -> None:
    example = Path(__file__).parents[3] / "data" / "trace"
    trace = Trace.load(example / "example.json")
    sentences = trace.describe()
    for words in ("prompt tokens cached", "splits", "for later", "evicts", "retracted", "admitted again", "(abort)"):
        assert words in sentences
    assert trace.player("Six requests, one radix cache").html() == (example / "example.html").read_text(
        encoding="utf-8"
    )
    assert sum(path.stat().st_size for path in example.glob("example.*")) < 500_000
    assert (example / "live_page.gif").stat().st_size < 1_000_000
