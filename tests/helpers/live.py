"""What tests of the live page share: engines that are looked at, and frames as a browser reads them."""

import json
from collections.abc import Sequence
from typing import Any

from nanoinfer import Engine
from nanoinfer.server.live.limits import Limits
from nanoinfer.server.live.patch import State
from nanoinfer.server.live.view import View
from tests.helpers.engines import LetterTokenizer, greedy, make_engine


class SpellingTokenizer(LetterTokenizer):
    """A LetterTokenizer that can be asked for special tokens, of which it has none."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, token_ids))


def merged(before: State, changes: State) -> State:
    """What static/live_state.js does with the changes of a frame."""
    after = dict(before)
    for name, value in changes.items():
        if value is None:
            del after[name]
        elif isinstance(value, dict) and isinstance(after.get(name), dict):
            after[name] = merged(after[name], value)
        else:
            after[name] = value
    return after


def read_frame(frame: bytes) -> dict[str, Any]:
    """The data of one event."""
    head, data, *rest = frame.decode().split("\n")
    assert (head, rest) == ("event: frame", ["", ""])
    return json.loads(data.removeprefix("data: "))


def looked_at(show_prompts: bool = False, limits: Limits | None = None, **options: Any) -> tuple[Engine, View]:
    """An engine, and a view of it that takes notes of its steps."""
    engine = make_engine(tokenizer=SpellingTokenizer(), **options)
    return engine, View(engine, limits or Limits(), show_prompts)


def step(engine: Engine, view: View, times: int = 1) -> None:
    for _ in range(times):
        engine.step()
        view.notes.after_pass(engine)


def finish(engine: Engine, view: View, *prompts: str, max_new_tokens: int = 4) -> None:
    """Serve prompts to their ends."""
    for prompt in prompts:
        engine.add_request(prompt, greedy(max_new_tokens))
    while engine.has_unfinished():
        step(engine, view)


def cells(state: State) -> list[int]:
    """The code of each cell of the map."""
    lines = state["map"]["lines"]
    runs = [lines[name] for name in sorted(lines, key=int)]
    return [code for line in runs for length, code in zip(line[::2], line[1::2], strict=True) for _ in range(length)]
