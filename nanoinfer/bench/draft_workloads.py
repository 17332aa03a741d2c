"""The workloads of `bench drafts`: texts to copy, JSON to fill in, and free stories, in the bundled model's language."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from nanoinfer.frontends.llm import LLM
from nanoinfer.requests.sampling_params import SamplingParams

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
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS: dict[str, dict[str, Any]] = {
    "A user": _object(
        name=TEXT, age={"type": "integer", "minimum": 0, "maximum": 120}, city=TEXT, is_active={"type": "boolean"}
    ),
    "A pet": _object(
        animal={"enum": list(KINDS)},
        pet_name=TEXT,
        favorite_food={"enum": ["soup", "bread", "cake", "honey"]},
        owner=_object(first_name=TEXT, last_name=TEXT),
    ),
    "A story": _object(
        title=TEXT,
        characters={
            "type": "array",
            "items": _object(name=TEXT, kind={"enum": list(KINDS)}),
            "minItems": 2,
            "maxItems": 2,
        },
        happy_ending={"type": "boolean"},
    ),
}


@dataclass(frozen=True)
class Ask:
    """A request: token ids and what is to follow."""

    prompt: list[int]
    params: SamplingParams


@dataclass(frozen=True)
class DraftWorkload:
    """`make(llm, count, rng)` returns `count` requests; the same `rng` gives the same. `drafters`: who is tried on it."""

    name: str
    question: str
    drafters: tuple[tuple[str, ...], ...]
    make: Callable[[LLM, int, Random], list[Ask]]


def make_asks(workload: DraftWorkload, llm: LLM, count: int, seed: str, new_tokens: int | None = None) -> list[Ask]:
    """The workload's requests for a seed, which decides all of them. `llm` has a tokenizer; the texts to be copied are its
    greedy output. `new_tokens`: at most so many per request (None: as many as the workload says)."""
    asks = workload.make(llm, count, Random(f"{workload.name}/{count}/{seed}"))
    if new_tokens is None:
        return asks
    return [replace(ask, params=replace(ask.params, max_new_tokens=new_tokens)) for ask in asks]


def copied_share(prompt: Sequence[int], output: Sequence[int], length: int = 4) -> float:
    """The share of the output's tokens that are in a run of `length` or more that is in the prompt, too."""
    known = {tuple(prompt[i : i + length]) for i in range(len(prompt) - length + 1)}
    copied = [False] * len(output)
    for i in range(len(output) - length + 1):
        if tuple(output[i : i + length]) in known:
            copied[i : i + length] = [True] * length
    return sum(copied) / len(output) if output else 0.0


def _copying(llm: LLM, count: int, rng: Random) -> list[Ask]:
    """In turn: a story that is begun again, a story that is begun again with another name, a list that is begun again."""
    openings = [_opening(rng) for _ in range(count)]
    renamed = [text.replace(_name_in(text), _other_name(text, rng)) for text in openings]
    prompts = [llm_ids(llm, text) for text in openings]
    params = SamplingParams(temperature=0.0, max_new_tokens=STORY_TOKENS, ignore_eos=True)
    stories = [list(output.token_ids) for output in llm.generate(prompts, params, use_tqdm=False)] if prompts else []
    asks = []
    for i, (prompt, story) in enumerate(zip(prompts, stories, strict=True)):
        if i % 3 == 2:
            asks.append(llm_ids(llm, _list(rng)))
        else:
            again = llm_ids(llm, renamed[i]) if i % 3 else prompt + story[:8]
            asks.append([*prompt, *story, *llm.model.end_token_ids[:1], *again])
    return [Ask(prompt, replace(params, max_new_tokens=rng.choice(NEW_TOKENS))) for prompt in asks]


def _json(llm: LLM, count: int, rng: Random) -> list[Ask]:
    """The schemas in turn; every second request is sampled."""
    asks = []
    for i in range(count):
        what, schema = list(SCHEMAS.items())[i % len(SCHEMAS)]
        prompt = llm_ids(llm, f"{_opening(rng)} {what}:")
        asks.append(Ask(prompt, SamplingParams(**_choice(i, rng), max_new_tokens=JSON_TOKENS, json_schema=schema)))
    return asks


def _stories(llm: LLM, count: int, rng: Random) -> list[Ask]:
    """Every second request is sampled."""
    openings = [llm_ids(llm, _opening(rng)) for _ in range(count)]
    return [
        Ask(prompt, SamplingParams(**_choice(i, rng), max_new_tokens=rng.choice(NEW_TOKENS)))
        for i, prompt in enumerate(openings)
    ]


def llm_ids(llm: LLM, text: str) -> list[int]:
    """The token ids of a prompt. ValueError if the model has no tokenizer."""
    if llm.tokenizer is None:
        raise ValueError(f"{llm.model.name}: has no tokenizer, which the workloads need")
    return llm.tokenizer.encode(text)


def _choice(i: int, rng: Random) -> dict[str, Any]:
    """Greedy for even `i`, else a temperature and a seed."""
    if i % 2 == 0:
        return {"temperature": 0.0}
    return {"temperature": TEMPERATURES[i // 2 % len(TEMPERATURES)], "seed": rng.randrange(2**31)}


def _opening(rng: Random) -> str:
    words = {"trait": TRAITS, "kind": KINDS, "name": NAMES, "home": HOMES}
    return rng.choice(OPENINGS).format(**{field: rng.choice(choices) for field, choices in words.items()})


def _name_in(text: str) -> str:
    return next(name for name in NAMES if name in text)


def _other_name(text: str, rng: Random) -> str:
    return rng.choice([name for name in NAMES if name != _name_in(text)])


def _list(rng: Random) -> str:
    """Numbers in steps, twice; the second time only the beginning."""
    first, step, length = rng.randint(1, 40), rng.choice((1, 1, 2)), rng.randint(50, 70)
    numbers = [str(number) for number in range(first, first + step * length, step)]
    title = f"Count{'' if step == 1 else f' by {step}s'} from {numbers[0]} to {numbers[-1]}:"
    return f"{title} {' '.join(numbers)}\n{title} {' '.join(numbers[:2])}"


DRAFT_WORKLOADS = {
    workload.name: workload
    for workload in (
        DraftWorkload(
            "copying",
            f"a text is in the prompt and begun again: {STORY_TOKENS} tokens of a story, the same with another name for "
            f"its hero, a list of numbers; greedy, {NEW_TOKENS[0]} to {NEW_TOKENS[-1]} new tokens",
            (("ngram",), ("ngram", "model"), ("tree",)),
            _copying,
        ),
        DraftWorkload(
            "json",
            "an object for one of three JSON schemas with values of up to 16 characters; half greedy, half sampled at "
            "temperatures of 0.7 to 1.0",
            (("grammar",), ("grammar", "model")),
            _json,
        ),
        DraftWorkload(
            "stories",
            f"free stories of {NEW_TOKENS[0]} to {NEW_TOKENS[-1]} tokens; half greedy, half sampled at temperatures of 0.7 "
            "to 1.0",
            (("model",), ("ngram",)),
            _stories,
        ),
    )
}
