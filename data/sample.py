"""Print samples of the trained model: stories, two-turn dialogues, counting and sums.

The same seed prints the same text.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

OPENINGS = (
    "Once upon a time",
    "One day",
    "There was a little fox named",
    "Long ago, a shy dragon named Vela",
    "One rainy morning, a girl",
    "Max was a clever",
)
DIALOGUES = (
    ("Hello", "Who are you?"),
    ("Tell me a story about a fox.", "What was its name?"),
    ("What does a rabbit eat?", "And where does it live?"),
    ("My name is Lily.", "What is my name?"),
    ("What color is the sky?", "And grass?"),
    ("Count from 3 to 9.", "And backwards?"),
    ("What is 7 + 5?", "Now add 3."),
    ("What is the capital of France?", "What can you do then?"),
)
LINES = ("1 2 3 4 5", "2 4 6 8", "Count from 5 to 12:", "12 + 7 =", "9 - 4 =", "34 + 17 =")


class Sampler:
    """A model, its tokenizer and a temperature (0: greedy)."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, temperature: float) -> None:
        self.model, self.tokenizer, self.temperature = model, tokenizer, temperature

    def extend(self, ids: list[int], max_new_tokens: int) -> str:
        """The text that follows `ids`, without special tokens."""
        sampling = (
            {"do_sample": True, "temperature": self.temperature, "top_k": 0}
            if self.temperature
            else {"do_sample": False}
        )
        prompt = torch.tensor([ids])
        mask = torch.ones_like(prompt)
        out = self.model.generate(prompt, attention_mask=mask, max_new_tokens=max_new_tokens, **sampling)
        return self.tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True)

    def continue_text(self, start: str, max_new_tokens: int = 300) -> str:
        """`start` and the model's continuation."""
        return start + self.extend(self.tokenizer(start).input_ids, max_new_tokens)

    def talk(self, questions: tuple[str, ...], max_new_tokens: int = 300) -> list[dict[str, str]]:
        """The conversation in which the model answers the questions in turn."""
        messages: list[dict[str, str]] = []
        for question in questions:
            messages.append({"role": "user", "content": question})
            ids = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            messages.append({"role": "assistant", "content": self.extend(ids, max_new_tokens)})
        return messages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, default=Path(__file__).parent / "story", help="folder with model and tokenizer"
    )
    parser.add_argument("--temperature", type=float, default=0.8, help="for the stories and the sampled dialogues")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(args.model), AutoTokenizer.from_pretrained(args.model)
    greedy, sampled = Sampler(model, tokenizer, 0.0), Sampler(model, tokenizer, args.temperature)

    for opening in OPENINGS:
        print(f"### {opening} (temperature {args.temperature})\n{sampled.continue_text(opening)}\n")
    for name, sampler in (("greedy", greedy), (f"temperature {args.temperature}", sampled)):
        for questions in DIALOGUES:
            print(f"### dialogue ({name})")
            for message in sampler.talk(questions):
                print(f"{message['role']}: {message['content']}")
            print()
    for line in LINES:
        print(f"### line (greedy)\n{greedy.continue_text(line, 60)}\n")


if __name__ == "__main__":
    main()
