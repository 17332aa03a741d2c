"""Whole conversations: exchanges of `dialogues` and `memory` strung together into messages."""

from __future__ import annotations

import random

from . import dialogues, memory

Message = dict[str, str]

EXCHANGES = {
    dialogues.story: 5,
    dialogues.animals: 4,
    dialogues.sums: 3,
    dialogues.colors: 2,
    dialogues.counting: 4,
    dialogues.opposites: 1.5,
    dialogues.about_me: 1.5,
    memory.calendar: 1,
    memory.listing: 1.5,
    memory.repeat: 1,
    memory.unknown: 1,
    memory.unknown_name: 0.7,
}
SYSTEM = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer in short, clear sentences.",
    "You are a friendly storyteller for children.",
    "You are Nano, a tiny language model.",
)


def draw_exchange(rng: random.Random) -> dialogues.Turns:
    """One exchange about one subject: one to four turns."""
    return rng.choices(list(EXCHANGES), list(EXCHANGES.values()))[0](rng)


def careless(rng: random.Random, text: str) -> str:
    """`text` as a user in a hurry types it: sometimes without capitals or the final punctuation mark."""
    if rng.random() < 0.08:
        text = text.rstrip(".?!")
    return text.lower() if rng.random() < 0.06 and "name" not in text else text


def write(rng: random.Random) -> list[Message]:
    """One conversation as chat messages, sometimes with a system message in front."""
    turns: dialogues.Turns = []
    recall: dialogues.Turns = []
    greeted = rng.random() < 0.25
    if greeted:
        turns += dialogues.greeting(rng)
    if rng.random() < 0.25:
        facts, recall = memory.user_fact(rng)
        turns += facts
    for _ in range(rng.choice((0, 1, 1)) if recall else rng.choice((1, 1, 2))):
        turns += draw_exchange(rng)
    turns += recall
    if rng.random() < 0.15:
        turns += dialogues.closing(rng)

    if not greeted and rng.random() < 0.1:
        question, answer = turns[0]
        turns[0] = (rng.choice(("Hi! ", "Hello! ", "Hey, Nano! ", "Good morning! ")) + question, answer)

    messages = [{"role": "system", "content": rng.choice(SYSTEM)}] if rng.random() < 0.1 else []
    for question, answer in turns:
        messages.append({"role": "user", "content": careless(rng, question)})
        messages.append({"role": "assistant", "content": answer})
    return messages
