"""Draw README's animation from the recorded run: `python data/trace/make_animation.py [--frames FOLDER]`.

Reads `example.json`, rebuilds the state after every step and writes `example.gif`: what each request has, who owns which
slot, and the radix tree. Nothing is computed by a model, so the same trace gives the same pictures.
"""

import argparse
import re
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from nanoinfer.viz.lettering import SMALL, TINY, text_width, wrapped
from nanoinfer.viz.palette import INK, MUTED, PHASE_STYLES, REQUESTS, ROLES, Style, owner_style
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.trace import Trace, TraceState
from nanoinfer.viz.trace.events import TraceEvent, from_runs
from nanoinfer.viz.words import count, runs

HERE = Path(__file__).parent
TITLE = "Six requests, 128 slots, one radix cache"
PER_ROW, CELL, TALL = 64, 13.0, 15.0  # slots in a line; size of a slot
PROMPT = 205.0  # how much of a line the prompt's end may take
GAP = 7.0  # letters come out a little wider than they are measured
LINE = 19.0  # height of a line of the request list and of the tree
GREYS, SAME = 16, 255  # in the palette: greys for the edges of letters, and the index of a pixel that does not change
DECODE_MS, EVENT_MS, LAST_MS = 450, 1800, 4000  # how long a frame stays: a step like the one before, another, the last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--frames", type=Path, help="also write every frame as a PNG into this folder")
    options = parser.parse_args()
    trace = Trace.load(HERE / "example.json")
    most_nodes = max(len(list(state.walk())) for _, state in trace.states())
    frames, durations = [], []
    for event, state in trace.states():
        if event.is_step:
            frames.append(frame(trace, event, state, most_nodes))
            durations.append(EVENT_MS if is_event(trace, event) else DECODE_MS)
    durations[-1] = LAST_MS
    if options.frames is not None:
        options.frames.mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(frames, 1):
            image.save(options.frames / f"step_{number:02d}.png")
    few = changes([np.asarray(image.quantize(palette=palette(), dither=Image.Dither.NONE)) for image in frames])
    path = HERE / "example.gif"
    few[0].save(
        path,
        save_all=True,
        append_images=few[1:],
        duration=durations,
        loop=0,
        transparency=SAME,
        disposal=1,
        optimize=False,
    )
    print(f"{path}: {len(few)} frames, {path.stat().st_size:,} bytes")


def frame(trace: Trace, event: TraceEvent, state: TraceState, most_nodes: int) -> Image.Image:
    """The state after one step, laid out like that of every other step."""
    sheet = Sheet(TITLE)
    head = f"step {event.step} of {len(trace)}"
    style = PHASE_STYLES[event.mode.lower()]
    sheet.rect(sheet.right - 64, 12, 64, 18, style)
    sheet.text(sheet.right - 32, 21, event.mode, size=SMALL, weight="bold", colour=style.text, ha="center")
    sheet.text(sheet.right - 72, 21, head, ha="right")
    story(sheet, trace.describe(event.step))
    requests(sheet, trace, event, state)
    slots(sheet, event, state)
    tree(sheet, trace, state, most_nodes)
    picture = sheet.picture(trace.describe(event.step))
    data = BytesIO()
    picture.savefig(data, format="png", dpi=100)  # as wide as a page of text: every pixel costs, 36 times
    return Image.open(data).convert("RGB")


def story(sheet: Sheet, text: str) -> None:
    """What happened, in two lines."""
    sentences = re.sub(r"Before this step, |Step \d+ [A-Z]+: ", "", text).split(". ")
    text = ". ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)
    room = sheet.right - sheet.left - 5 * GAP
    rows = [*wrapped(text, room), ""]
    for row in [rows[0], " ".join(rows[1:])]:
        sheet.text(sheet.left, sheet.y + 6, row, colour=MUTED, width=room)
        sheet.y += 15
    sheet.y += 6


def requests(sheet: Sheet, trace: Trace, event: TraceEvent, state: TraceState) -> None:
    """A line per request: what it does, and the end of its text."""
    phases = {entry.request: event.mode.lower() for entry in event.batch}
    for index in range(len(trace.requests)):
        req, y = state.requests.get(index), sheet.y + LINE / 2
        if req is not None:
            sheet.rect(sheet.left, sheet.y + 3, 12, 12, owner_style(req.name, index), edge="#767676")
            sheet.text(sheet.left + 19, y, req.name)
            phase = phases.get(index, "idle" if req.is_running else req.status)
            label = {"idle": "not in this pass", "ended": f"ended: {req.finish_reason}"}.get(phase, phase)
            look = PHASE_STYLES.get(phase, ROLES["free"])
            sheet.cell(sheet.left + 88, sheet.y + 2, 100, 14, look, label, edge="#b8b8b8")
            texts = [trace.texts[token].replace("\n", " ") for token in req.tokens]
            prompt = len(req.request.prompt)
            output = "".join(texts[prompt:])
            x = sheet.left + 198
            x += sheet.text(x, y, ending("".join(texts[1:prompt]), PROMPT), colour=MUTED) + GAP
            sheet.text(x, y, ending(output, sheet.right - x - 2 * GAP, "bold"), weight="bold")
        sheet.y += LINE
    sheet.y += 8


def slots(sheet: Sheet, event: TraceEvent, state: TraceState) -> None:
    """Every slot by its owner; those written in this step framed."""
    looks: list[tuple[Style, str, list[int]]] = [
        (ROLES["tree_locked"], "tree, in use", [s for _, node in state.walk() if node.lock_ref for s in node.value]),
        (ROLES["tree"], "tree", [s for _, node in state.walk() if not node.lock_ref for s in node.value]),
        *((owner_style(req.name, i), req.name, req.slots) for i, req in enumerate(state.running)),
    ]
    styles = {slot: style for style, _, taken in looks for slot in taken}
    written = {slot for entry in event.batch for slot in from_runs(entry.slots)}
    sheet.heading(f"Who owns the {count(state.size, 'slot')} of the KV pool")
    for start in range(0, state.size, PER_ROW):
        sheet.text(sheet.left + 22, sheet.y + TALL / 2, str(start), size=SMALL, colour=MUTED, ha="right")
        for slot in range(start, min(start + PER_ROW, state.size)):
            x = sheet.left + 28 + (slot - start) * CELL
            sheet.rect(x, sheet.y, CELL - 1, TALL - 1, styles.get(slot, ROLES["free"]), edge="#b8b8b8", line=0.5)
            if slot in written:
                sheet.rect(x + 0.5, sheet.y + 0.5, CELL - 2, TALL - 2, edge=ROLES["highlight"].face, line=1.6)
        sheet.y += TALL + 1
    sheet.y += 5
    entries = [(style, f"{name}: {len(taken)}") for style, name, taken in looks if taken]
    sheet.legend([*entries, (ROLES["free"], f"free: {state.free}")], marked="written in this step")
    sheet.y += 2


def tree(sheet: Sheet, trace: Trace, state: TraceState, most_nodes: int) -> None:
    """The nodes, one line each, indented by their depth."""
    nodes = list(state.walk())
    total = sum(len(node) for _, node in nodes)
    sheet.heading(f"The radix tree: {count(total, 'token')} in {count(len(nodes), 'node')}")
    bottom = sheet.y + most_nodes * LINE
    for depth, node in nodes:
        x = sheet.left + 20 * (depth - 1)
        style = ROLES["tree_locked" if node.lock_ref else "tree"]
        sheet.rect(x, sheet.y, sheet.right - x, LINE - 3, style, edge="#4a4a4a")
        words = f"{count(len(node), 'token')} · slots {runs(node.value, 3)}"
        middle = sheet.y + LINE / 2 - 1.5
        wide = sheet.text(sheet.right - 6, middle, words, size=SMALL, colour=style.text, ha="right")
        text = "".join(trace.texts[token] for token in node.key).replace("\n", " ")
        sheet.text(x + 6, middle, text, size=SMALL, colour=style.text, width=sheet.right - x - wide - 24)
        sheet.y += LINE
    sheet.y = bottom
    sheet.text(
        sheet.left,
        sheet.y + 4,
        "Dark green: running requests read it. Light green: it may be evicted.",
        size=TINY,
        colour=MUTED,
    )
    sheet.y += 10


def ending(text: str, width: float, weight: str = "normal") -> str:
    """`text`, or as many of its last words as fit `width`, after an ellipsis."""
    words = text.split(" ")
    texts = [text, *("… " + " ".join(words[start:]) for start in range(1, len(words)))]
    return next((shown for shown in texts if text_width(shown, weight=weight) <= width), "…")


def is_event(trace: Trace, event: TraceEvent) -> bool:
    """Whether a step is more than another token for the same requests."""
    return event.mode == "EXTEND" or "; " in trace.describe(event.step) or event.step == 3


def changes(frames: list[np.ndarray]) -> list[Image.Image]:
    """Frames of palette indices as images in which a pixel that stays as it is has the transparent index."""
    images = []
    for i, frame in enumerate(frames):
        image = Image.fromarray(
            frame if i == 0 else np.where(frame == frames[i - 1], SAME, frame).astype(np.uint8), "P"
        )
        image.putpalette(palette().getpalette() or [])
        images.append(image)
    return images


def palette() -> Image.Image:
    """The colours of every frame: those of the styles, and greys."""
    styles = [*ROLES.values(), *REQUESTS, *PHASE_STYLES.values()]
    named = {colour for style in styles for colour in (style.face, style.text, style.mark)} | {INK, MUTED, "#b8b8b8"}
    colours = [bytes.fromhex(colour[1:]) for colour in sorted(named)]
    colours += [bytes([round(255 * i / (GREYS - 1))] * 3) for i in range(GREYS)]
    image = Image.new("P", (1, 1))
    image.putpalette(b"".join(colours))
    return image


if __name__ == "__main__":
    main()
