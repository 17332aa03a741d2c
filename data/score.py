"""Count how many greedy answers of the trained model are right, task by task.

An answer is right when it is the expected text, letter for letter; for the name in a story, when the answer contains
the name that the user gave.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from pathlib import Path

from corpus import words
from sample import Sampler
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

Case = tuple[tuple[str, ...], str]
"""The user's turns, and the text that the last answer must contain."""


def invented_name(rng: random.Random) -> str:
    """A name that is in none of the lists of the corpus, made of the syllables of its invented names."""
    return "".join(rng.choice(words.SYLLABLES) for _ in range(3)).capitalize()


def draw_cases(rng: random.Random, count: int) -> dict[str, list[Case]]:
    """`count` cases per task, by the name of the task."""
    cases: dict[str, list[Case]] = defaultdict(list)
    for _ in range(count):
        x, y, span = rng.randint(0, 10), rng.randint(0, 10), rng.randint(2, 9)
        total, values = x + y, ", ".join(map(str, range(x + 1, x + 1 + span)))
        kind, name, invented = rng.choice(list(words.ANIMALS)), rng.choice(words.GIRLS + words.BOYS), invented_name(rng)
        noun, animal, ask_name = words.a(kind), words.ANIMALS[kind], "What is my name?"
        cases["sum"].append(((f"What is {x} + {y}?",), f"{x} + {y} = {total}."))
        cases["add to the last result"].append(((f"What is {x} + {y}?", "Now add 2."), f"{total} + 2 = {total + 2}."))
        cases["count from x to y"].append(((f"Count from {x + 1} to {x + span}.",), f"{values}."))
        food, home = f"{noun.capitalize()} eats {animal.eats}.", f"{noun.capitalize()} lives in {animal.home}."
        cases["what does it eat"].append(((f"What does {noun} eat?",), food))
        cases["and where does it live"].append(((f"What does {noun} eat?", "And where does it live?"), home))
        cases["recall a known name"].append(((f"My name is {name}.", ask_name), f"Your name is {name}."))
        cases["recall an invented name"].append(((f"My name is {invented}.", ask_name), f"Your name is {invented}."))
        cases["name in a story"].append(((f"Tell me a story about {noun} named {name}.", "What was its name?"), name))
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path(__file__).parent / "story", help="folder with the model")
    parser.add_argument("--count", type=int, default=40, help="cases per task")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    sampler = Sampler(AutoModelForCausalLM.from_pretrained(args.model), AutoTokenizer.from_pretrained(args.model), 0.0)
    for task, cases in draw_cases(random.Random(args.seed), args.count).items():
        right = 0
        for questions, expected in tqdm(cases, desc=task, leave=False):
            answer = sampler.talk(questions)[-1]["content"]
            right += expected in answer if task == "name in a story" else expected == answer
        print(f"{task:28} {right:3} of {len(cases)}")


if __name__ == "__main__":
    main()
