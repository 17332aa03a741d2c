"""The styles that the adapters are trained on: one and the same way to tell, as a text and in a conversation."""

from __future__ import annotations

import random
from collections.abc import Callable

from . import dialogues, rhymes, sea, stories
from .chats import Message
from .words import BOYS, GIRLS, PEOPLE, a

Tell = Callable[[random.Random, str | None, str | None], str]
STYLES: dict[str, Tell] = {"rhymes": rhymes.tell, "sea": sea.tell}
CHAT_SHARE = 0.2


def ask(rng: random.Random, tell: Tell) -> list[Message]:
    """A conversation: the user asks for a story, the assistant tells one."""
    kind = stories.draw_kind(rng)
    about, name = a(kind), None
    if rng.random() < 0.3:
        name = rng.choice({True: GIRLS, False: BOYS, None: GIRLS + BOYS}[PEOPLE.get(kind)])
        about += f" named {name}"
    question = rng.choice(dialogues.ASK_STORY).format(about)
    return [{"role": "user", "content": question}, {"role": "assistant", "content": tell(rng, kind, name)}]


def write(rng: random.Random, style: str) -> dict[str, object]:
    """One document in a style of `STYLES`, in the form of a line of the corpus (`make_corpus.py`)."""
    tell = STYLES[style]
    if rng.random() < CHAT_SHARE:
        return {"messages": ask(rng, tell)}
    return {"text": tell(rng, None, None)}
