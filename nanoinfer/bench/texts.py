"""Workloads of `bench run` that are texts, in the bundled model's language: what drafters can be right about.

`copying@4` has four requests at a time, and so on: `copying` (a text is in the prompt and begun again), `again` (the same,
and served once before), `json` (an object for a schema; half greedy, half sampled) and `stories` (likewise).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from nanoinfer.bench.workloads import Job, Request
from nanoinfer.sampling_params import SamplingParams

if TYPE_CHECKING:
    from nanoinfer.bench.machine import Checkpoint
    from nanoinfer.llm import LLM

NEW_TOKENS = (64, 80, 96, 112)  # one of these: in a server, requests do not end together
JSON_TOKENS = 96  # enough for each of the schemas
STORY_TOKENS = 120  # of a story that is to be told again
TEMPERATURES = (0.7, 0.8, 0.9, 1.0)
TRAITS = ("kind", "shy", "brave", "little", "gentle", "clever", "happy", "quiet")
KINDS = ("fox", "bear", "rabbit", "mouse", "hen", "turtle", "goat", "horse")
NAMES = ("Max", "Lucy", "Ben", "Molly", "Sam", "Anna", "Theo", "Mia", "Noah", "Lily", "Jack", "Nora", "Oliver", "Maya")
HOMES = ("near the mountains", "by a clear lake", "in a green valley", "in a den in the forest", "on a small farm")
OPENINGS = (
    "Once upon a time, there was a {trait} {kind} named {name} who lived {home}.",
    "Long ago, a {trait} {kind} named {name} lived {home}.",
    "There was once a {trait} {kind} called {name} who lived {home}.",
    "{name} was a {trait} {kind} who lived {home}.",
)
TEXT = {"type": "string", "minLength": 1, "maxLength": 16}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


AGE = {"type": "integer", "minimum": 0, "maximum": 120}
FOODS = {"enum": ["soup", "bread", "cake", "honey"]}
HERO = _object(name=TEXT, kind={"enum": [*KINDS]})
SCHEMAS = {
    "A user": _object(name=TEXT, age=AGE, city=TEXT, is_active={"type": "boolean"}),
    "A pet": _object(
        animal={"enum": [*KINDS]}, pet_name=TEXT, favorite_food=FOODS, owner=_object(first_name=TEXT, last_name=TEXT)
    ),
    "A story": _object(
        title=TEXT,
        characters={"type": "array", "items": HERO, "minItems": 2, "maxItems": 2},
        happy_ending={"type": "boolean"},
    ),
}


@dataclass(frozen=True)
class TextWorkload:
    """Requests for texts, `together` of which are served at a time."""

    name: str
    together: int

    def __str__(self) -> str:
        return f"{self.name}@{self.together}"

    def describe(self, checkpoint: "Checkpoint") -> str:
        """In words."""
        return f"texts, {self.together} at a time"

    def make_job(self, llm: "LLM", seed: int) -> Job:
        """Its requests for a seed: twice as many as there are at a time, at least 16. `llm` writes what is copied."""
        count = max(2 * self.together, 16)
        requests = MAKERS[self.name](llm, count, Random(f"{self}/{seed}"))
        return Job(requests, requests if self.name == "again" else [], together=self.together)


def text_workload(name: str) -> TextWorkload | None:
    """`copying@4` and so on; None for another name."""
    found = re.fullmatch(rf"({'|'.join(MAKERS)})@([1-9]\d*)", name)
    return TextWorkload(found[1], int(found[2])) if found else None


def _copying(llm: "LLM", count: int, rng: Random) -> list[Request]:
    """In turn: a story that is begun again, a story that is begun again with another name, a list that is begun again."""
    openings = [_opening(rng) for _ in range(count)]
    prompts = [_ids(llm, text) for text, _ in openings]
    params = SamplingParams(temperature=0.0, max_new_tokens=STORY_TOKENS, ignore_eos=True)
    stories = [list(output.token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]
    requests = []
    for i, ((text, name), prompt, story) in enumerate(zip(openings, prompts, stories, strict=True)):
        other = rng.choice([each for each in NAMES if each != name])
        again = _ids(llm, text.replace(name, other)) if i % 3 else prompt + story[:8]
        copied = _ids(llm, _list(rng)) if i % 3 == 2 else [*prompt, *story, *llm.model.end_token_ids[:1], *again]
        requests.append(Request(copied, rng.choice(NEW_TOKENS)))
    return requests


def _json(llm: "LLM", count: int, rng: Random) -> list[Request]:
    """The schemas in turn."""
    requests = []
    for i in range(count):
        what, schema = list(SCHEMAS.items())[i % len(SCHEMAS)]
        prompt = _ids(llm, f"{_opening(rng)[0]} {what}:")
        requests.append(Request(prompt, JSON_TOKENS, sampling={**_choice(i, rng), "json_schema": schema}))
    return requests


def _stories(llm: "LLM", count: int, rng: Random) -> list[Request]:
    openings = [_ids(llm, _opening(rng)[0]) for _ in range(count)]
    return [Request(each, rng.choice(NEW_TOKENS), sampling=_choice(i, rng)) for i, each in enumerate(openings)]


MAKERS: dict[str, Callable[["LLM", int, Random], list[Request]]] = {
    "copying": _copying,
    "again": _copying,
    "json": _json,
    "stories": _stories,
}


def _ids(llm: "LLM", text: str) -> list[int]:
    if llm.tokenizer is None:
        raise ValueError(f"{llm.model.name}: has no tokenizer, which these workloads need")
    return llm.tokenizer.encode(text)


def _choice(i: int, rng: Random) -> dict[str, Any]:
    """Greedy for even `i`, else a temperature and a seed."""
    if i % 2 == 0:
        return {"temperature": 0.0}
    return {"temperature": TEMPERATURES[i // 2 % len(TEMPERATURES)], "seed": rng.randrange(2**31)}


def _opening(rng: Random) -> tuple[str, str]:
    """The beginning of a story, and its hero's name."""
    words = {"trait": TRAITS, "kind": KINDS, "name": NAMES, "home": HOMES}
    chosen = {field: rng.choice(choices) for field, choices in words.items()}
    return rng.choice(OPENINGS).format(**chosen), chosen["name"]


def _list(rng: Random) -> str:
    """Numbers in steps, twice; the second time only the beginning."""
    first, step, length = rng.randint(1, 40), rng.choice((1, 1, 2)), rng.randint(50, 70)
    numbers = [str(number) for number in range(first, first + step * length, step)]
    title = f"Count{'' if step == 1 else f' by {step}s'} from {numbers[0]} to {numbers[-1]}:"
    return f"{title} {' '.join(numbers)}\n{title} {' '.join(numbers[:2])}"
