"""Pictures of odd things: hostile texts, engines in the middle of something, users with a style of matplotlib set."""

import hashlib
import pickle
import warnings
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch

from nanoinfer import viz
from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.requests.req import FinishReason
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.viz import lettering
from nanoinfer.viz.palette import ROLES, owner_style
from tests.helpers.engines import greedy, make_engine
from tests.helpers.pictures import faces, make_pool, named, take, texts, worked_example
from tests.helpers.waiting import Worker

TEXTS = ["a\nb\tc\"'", "\x00\x1b[31m\x07\r", "中文", "🙂", "$x^2$ \\frac", "\ud800", ""]
STYLE = {
    "text.usetex": True,
    "font.family": "serif",
    "font.style": "italic",
    "axes.facecolor": "red",
    "axes.grid": True,
    "figure.autolayout": True,
    "path.sketch": (1, 100, 2),
    "hatch.linewidth": 5,
    "text.hinting": "none",
    "patch.antialiased": False,
    "axes.spines.left": False,
}


def drawings() -> dict[str, viz.Picture]:
    metadata = worked_example()
    return {
        "metadata": viz.input_metadata(metadata, tokens=["$a_1$"] * 12),
        "slots": viz.slot_map(make_pool(40), {"request 1": [2]}),
        "lines": viz.lines({"a": ([1, 2], [3, 4]), "b": ([1, 2], [4, 3])}, x="$x$", y="y", title="t", log=True),
        "padding": viz.padded_batch([3, 5]),
    }


def digests() -> dict[str, str]:
    return {name: hashlib.sha256(picture.png()).hexdigest() for name, picture in drawings().items()}


# --- style, threads ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_style_of_the_user_changes_no_picture_and_no_picture_changes_the_style() -> None:
    before = digests()
    lettering.measure.cache_clear()
    lettering.font.cache_clear()
    with matplotlib.rc_context(STYLE):
        settings = dict(matplotlib.rcParams)
        assert digests() == before
        assert dict(matplotlib.rcParams) == settings


@pytest.mark.slow
def test_threads_that_draw_leave_the_settings_as_they_were() -> None:
    settings, expected = dict(matplotlib.rcParams), digests()
    workers = [Worker(digests) for _ in range(2)]
    assert [worker.result() for worker in workers] == [expected] * 2
    assert dict(matplotlib.rcParams) == settings


def test_every_picture_can_be_pickled() -> None:
    for picture in drawings().values():
        again = pickle.loads(pickle.dumps(picture))
        assert again.alt == picture.alt
        assert again.png() == picture.png()


def test_a_terminal_prints_the_numbers_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ipython = pytest.importorskip("IPython")
    monkeypatch.setattr(ipython, "get_ipython", object)  # a shell without a kernel
    viz.slot_map(make_pool(16))._ipython_display_()
    assert capsys.readouterr().out == "16 slots: 16 free.\n"


# --- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_any_kind_are_drawn_on_one_line_without_a_warning(text: str) -> None:
    engine = make_engine()
    engine.add_request([97, 98, 99], greedy())
    engine.step()
    metadata = viz.last_input_metadata(engine)
    tokens = [text] * metadata.total_num_tokens
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for picture in (
            viz.radix_tree(engine.radix_cache, decode=lambda ids: text * len(ids), title=text),
            viz.input_metadata(metadata, tokens=tokens, labels=[text], title=text),
            viz.extend_mask(metadata, tokens=tokens, labels=[text], title=text),
            viz.slot_map(make_pool(4), {text: [0]}, title=text),
            viz.bars({text: 1}, unit=text, title=text),
            viz.lines({text: ([1], [2]), "b": ([1], [2])}, x=text, y=text, title=text),
            viz.heat_map([[0.5]], [text], [text], title=text),
        ):
            picture.png()
            assert not any(char in picture.alt for char in "\n\t\r\x00\x1b\ud800")


def test_a_decode_that_returns_no_text_is_refused() -> None:
    engine = make_engine()
    engine.add_request([97, 98, 99], greedy())
    engine.step()
    decode: Any = lambda ids: 5  # noqa: E731
    with pytest.raises(ValueError, match="decode: must return text, got int"):
        viz.radix_tree(engine.radix_cache, decode=decode)


def test_huge_numbers_stay_short() -> None:
    assert "a: 1e+300 ms" in viz.bars({"a": 1e300, "b": 1}, unit="ms").alt


# --- slots ------------------------------------------------------------------------------------------------------------


def test_a_slot_listed_twice_by_one_owner_is_marked() -> None:
    pool = make_pool(20)
    take(pool, 4)
    picture = viz.slot_map(pool, {"request 1": [0, 0, 1, 2, 3]})
    assert faces(picture, "slot 0") == [ROLES["conflict"].face]
    assert "several owners: 0" in picture.alt


def test_of_many_slots_a_leak_and_a_marked_one_are_seen() -> None:
    pool = make_pool(100_000)
    slots = take(pool, 5_000)
    picture = viz.slot_map(pool, {"request 1": slots[:-1]}, highlight=[7, 99_999])
    assert len(faces(picture, "slots 4992-5007")) == 1
    assert faces(picture, "slots 4992-5007") == [ROLES["leaked"].face]
    frames = [p for p in picture.axes[0].patches if p.get_edgecolor()[:3] == matplotlib.colors.to_rgb("#d4006a")]
    assert len(frames) >= 2


# --- engines ----------------------------------------------------------------------------------------------------------


def test_completions_keep_their_names_when_another_one_has_ended_and_have_looks_of_their_own() -> None:
    engine = make_engine(rows=3)
    engine.add_request([97, 98, 99], SamplingParams(max_new_tokens=30, n=3, temperature=1.0))
    engine.step()
    names = ["request 0", "request 0 (2)", "request 0 (3)"]
    assert list(viz.owners(engine)) == names
    engine.scheduler.end(engine.open_requests.groups[0].reqs[:1], FinishReason.ABORT)
    assert list(viz.owners(engine)) == names[1:]
    assert len({owner_style(name, 0) for name in names}) == 3


def test_drawing_changes_nothing_of_the_engine() -> None:
    engine = make_engine(rows=3, slots=32, chunked_prefill_size=5, schedule_conservativeness=0.1)
    for i in range(4):
        engine.add_request([97, 98, 99, 100, 101 + i, 5, 6], greedy(12))
    for _ in range(9):
        engine.step()

    def everything() -> Any:
        tree = engine.radix_cache
        nodes = [(n.key.tolist(), n.lock_ref, n.last_access_time, n.hit_count) for _, n in tree.nodes()]
        reqs = [{k: str(v) for k, v in vars(req).items()} for req in engine.scheduler.running]
        return nodes, reqs, engine.stats(), engine.cache.rows.tolist()

    before = everything()
    viz.engine(engine)
    viz.radix_tree(engine.radix_cache, highlight=engine.scheduler.running[0].last_node)
    metadata = viz.last_input_metadata(engine)
    viz.input_metadata(metadata, tokens=viz.last_tokens(engine), labels=viz.last_labels(engine))
    viz.extend_mask(metadata)
    assert everything() == before


def test_a_retracted_request_is_marked_as_retracted() -> None:
    engine = make_engine(rows=3, slots=32, schedule_conservativeness=0.1)
    for i in range(3):
        engine.add_request([97, 98, 99, 100, 101 + i], greedy(12))
    while not engine.scheduler.waiting or not next(iter(engine.scheduler.waiting)).num_retractions:
        engine.step()
    picture = viz.engine(engine)
    assert "tokens, retracted)." in picture.alt
    assert any("retracted" in text for text in texts(picture))


def test_slots_of_the_last_page_that_are_not_filled_yet_are_the_requests() -> None:
    engine = make_engine(page_size=4)
    engine.add_request([97, 98, 99, 100, 101, 102], greedy())
    engine.step()
    ((name, slots),) = viz.owners(engine).items()
    req = engine.scheduler.running[0]
    assert req.kv_len == 6
    assert slots.tolist() == [4, 5, 6, 7]
    picture = viz.slot_map(engine.cache.token_to_kv_pool, {name: slots}, radix_cache=engine.radix_cache)
    assert "no owner" not in picture.alt
    assert len(named(picture, "slot ")) == 256


# --- wrong input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: viz.bars({"a": "x"}, unit="ms"), r"values\['a'\]: must be a number, got 'x'"),
        (lambda: viz.bars({"a": None}, unit="ms"), r"values\['a'\]: must be a number, got None"),
        (lambda: viz.bars({"a": 1}, unit="ms", line_at="x"), "line_at: must be a number, got 'x'"),
        (lambda: viz.bars({"a": 1}, unit="ms", line_at=-1), "line_at=-1.0: must be finite and not negative"),
        (lambda: viz.lines({"a": 5}, x="", y=""), r"series\['a'\]: must be \(xs, ys\), two lists of numbers"),
        (lambda: viz.lines({"a": ([1], ["x"])}, x="", y=""), r"series\['a'\]: must be a number, got 'x'"),
        (lambda: viz.lines({"a": ([1], [np.inf])}, x="", y=""), r"series\['a'\]=inf: must be finite"),
        (lambda: viz.extend_mask(worked_example(), labels=5), "labels: must be a list of 1 texts, got 5"),
        (lambda: viz.extend_mask(worked_example(), tokens="abc"), "tokens: must be a list of 12 texts, got 'abc'"),
        (lambda: viz.extend_mask(worked_example(), sliding_window=True), "sliding_window=True: must be an integer"),
        (lambda: viz.request_rows(ReqToTokenPool(2, 8), {0: 3}, labels=5), "labels: must be a list of 1 texts, got 5"),
        (lambda: viz.padded_batch(5), "sessions_or_lens: must be list, got int"),
        (lambda: viz.padded_batch([1], labels=["a", "b"]), "labels: 2 texts for rows=1; must be as many"),
        (lambda: viz.heat_map([["a"]], ["a"], ["b"]), r"values: must be numbers \[rows, columns\]"),
        (lambda: viz.heat_map([[0.1]], None, ["b"]), "rows: must be Sequence, got NoneType"),
        (lambda: viz.session_steps([{"a": 1}]), r"steps\[0\]: request id 'a': must be int, got str"),
        (lambda: viz.attention_mask(torch.ones(1, 3).bool(), prefix_len="a"), "prefix_len: must be int, got str"),
        (
            lambda: viz.attention_mask(torch.ones(1, 3).bool(), prefix_len=2, sliding_window=0),
            "sliding_window=0: must be an integer, at least 1, or None",
        ),
    ],
)
def test_wrong_values_are_refused_by_name(draw: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw()
