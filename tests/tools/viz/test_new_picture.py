"""A picture that is not in the package: a function of its user's, drawn with the package's tools like the built-in ones."""

import textwrap
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from PIL import Image

from nanoinfer import Engine, viz
from nanoinfer.viz import Picture, Sheet
from nanoinfer.viz.palette import ROLES, Style, owner_style
from nanoinfer.viz.slots import running_labels
from nanoinfer.viz.words import count, expect_type, slots
from tests.helpers.engines import greedy, make_engine
from tests.helpers.pictures import assert_readable, faces, named, texts


def output_slots(engine: Engine, *, title: str | None = None) -> Picture:
    """The slots of each running request that came after its prompt, over a bar of the whole pool."""
    expect_type("engine", engine, Engine)
    size = engine.cache.token_to_kv_pool.size
    sheet = Sheet(title, "Slots of outputs")
    unit, parts = (sheet.right - sheet.left) / size, []
    sheet.rect(sheet.left, sheet.y, sheet.right - sheet.left, 18, ROLES["free"], edge="#767676", name="pool")
    entries: list[tuple[Style, str]] = []
    for i, (label, req) in enumerate(zip(running_labels(engine), engine.scheduler.running, strict=True)):
        style = owner_style(label, i)
        taken = engine.cache.rows[req.req_pool_idx, req.prompt_len : req.kv_len]
        for slot in taken.tolist():
            sheet.rect(sheet.left + slot * unit, sheet.y, unit, 18, style, name=f"{label} slot {slot}")
        entries.append((style, label))
        parts.append(f"{label}: {count(len(taken), 'token')} in {slots(taken)}")
    sheet.y += 28
    sheet.legend(entries)
    return sheet.picture("; ".join(parts) + ".")


@pytest.fixture
def engine() -> Engine:
    """Two requests after three steps: each has computed two output tokens."""
    engine = make_engine()
    for prompt in ([1, 2, 3], [9, 8, 7, 6]):
        engine.add_request(prompt, greedy(8))
    for _ in range(3):
        engine.step()
    return engine


def test_a_picture_from_outside_shows_the_live_engine_in_words_and_colours(engine: Engine) -> None:
    picture = output_slots(engine)
    assert picture.alt == "request 0: 2 tokens in slots 7, 9; request 1: 2 tokens in slots 8, 10."
    assert faces(picture, "request 0 slot 7") == [owner_style("request 0", 5).face], "by its number"
    assert faces(picture, "request 1 slot 10") == faces(viz.engine(engine), "slot 10"), "as in every other picture"
    assert {"Slots of outputs", "request 0", "request 1"} <= set(texts(picture))
    assert "Mine" in texts(output_slots(engine, title="Mine"))
    assert_readable(picture)
    engine.step()
    assert output_slots(engine).alt.startswith("request 0: 3 tokens"), "the engine of now"


def test_a_picture_from_outside_is_saved_with_the_palettes_colours(engine: Engine, tmp_path: Path) -> None:
    picture = output_slots(engine)
    picture.save(tmp_path / "mine.png")
    assert (tmp_path / "mine.png").read_bytes() == picture.png() == output_slots(engine).png()
    image = Image.open(BytesIO(picture.png())).convert("RGB")
    colours = {f"#{r:02x}{g:02x}{b:02x}" for _, (r, g, b) in image.getcolors(100_000) or []}  # type: ignore[misc]
    assert {owner_style(f"request {i}", i).face for i in range(2)} <= colours


def test_a_picture_from_outside_shows_itself_in_a_notebook(engine: Engine) -> None:
    display = pytest.importorskip("IPython.display")
    shown: list[Any] = []
    picture = output_slots(engine)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(display, "display", lambda *args, **kwargs: shown.append(args))
        picture._ipython_display_()
    assert set(shown[0][0]) == {"image/png", "text/plain"}
    assert shown[0][0]["text/plain"] == picture.alt
    assert shown[1][0]["text/plain"] == picture.alt


def test_a_picture_from_outside_refuses_what_it_cannot_draw_by_name() -> None:
    with pytest.raises(ValueError, match="engine: must be Engine, got int"):
        output_slots(3)  # type: ignore[arg-type]


def test_the_picture_that_the_documentation_writes_is_drawn(engine: Engine) -> None:
    assert viz.__doc__ is not None
    lines = viz.__doc__.split("nothing has to know of it:\n")[1].split("\n- ")[0]
    namespace: dict[str, Any] = {}
    exec(textwrap.dedent(lines), namespace)
    for prompt in ([5] * 60, [6] * 40):
        engine.add_request(prompt, greedy(2))
    picture = namespace["queue"](engine)
    assert picture.alt == "Waiting: request 2 with 60 tokens, request 3 with 40 tokens."
    assert "2 requests in the queue" in texts(picture)
    assert [shape.get_width() for shape in named(picture, "request")] == [240, 160]
    assert_readable(picture)
    assert namespace["queue"](make_engine()).alt == "Waiting: no request."
