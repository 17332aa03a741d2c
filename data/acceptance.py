"""Count how often a draft model guesses the token that the story model chooses, with nothing but transformers.

The story model continues a few beginnings, greedily and at a temperature. Where all drafts before a token were accepted,
the draft model has read what the story model wrote, so one pass of it over the finished text gives every guess.

Each sampled token inverts the cumulative distribution at one random number. The draft model can guess in two ways: its
likeliest token, or the token that the same number picks from its own distribution.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from corpus import words
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

DATA = Path(__file__).parent
STARTS = ("Once upon a time", "One day", "There was a little fox named", "One rainy morning, a girl")


def draw(scores: torch.Tensor, temperature: float, numbers: torch.Tensor) -> torch.Tensor:
    """The token of each row, int64 [rows]: `numbers` [rows] in [0, 1) invert the cumulative distribution of `scores`
    [rows, vocabulary] at `temperature`; at temperature 0 the likeliest."""
    if temperature == 0:
        return scores.argmax(dim=-1)
    cumulative = (scores.double() / temperature).softmax(dim=-1).cumsum(dim=-1)
    drawn = torch.searchsorted(cumulative, numbers[:, None] * cumulative[:, -1:], right=True)[:, 0]
    return drawn.clamp(max=scores.shape[-1] - 1)


class Draw(LogitsProcessor):
    """Makes `generate` choose the tokens that `draw` does, with the numbers of `numbers` [rows, steps]."""

    def __init__(self, temperature: float, numbers: torch.Tensor) -> None:
        self.temperature, self.numbers, self.step = temperature, numbers, 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        chosen = draw(scores, self.temperature, self.numbers[:, self.step])
        self.step += 1
        return torch.full_like(scores, -torch.inf).scatter(1, chosen[:, None], 0.0)


@dataclass(frozen=True)
class Text:
    """`ids`: prompt and continuation, int64 [tokens]. The latter starts at `start` and has one of `numbers` per token."""

    ids: torch.Tensor
    start: int
    numbers: torch.Tensor


@torch.no_grad()
def write(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[str],
    temperature: float,
    seed: int,
    max_new_tokens: int = 256,
) -> list[Text]:
    """The model's continuations of `prompts`, each up to its end token, which is part of it."""
    encoded = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    numbers = torch.from_numpy(np.random.default_rng(seed).random((len(prompts), max_new_tokens)))
    chooses = LogitsProcessorList([Draw(temperature, numbers)])
    out = model.generate(**encoded, do_sample=False, logits_processor=chooses, max_new_tokens=max_new_tokens)
    texts = []
    for row, mask, of_row in zip(out, encoded.attention_mask, numbers, strict=True):
        padding, width = int((mask == 0).sum()), len(mask)
        ends = (row[width:] == tokenizer.eos_token_id).nonzero()
        length = int(ends[0]) + 1 if len(ends) else len(row) - width
        texts.append(Text(row[padding : width + length], width - padding, of_row[:length]))
    return texts


@torch.no_grad()
def hits(draft: PreTrainedModel, text: Text, temperature: float) -> torch.Tensor:
    """Whether the draft model, which has read all before it, guesses each token of the continuation: bool [tokens]."""
    scores = draft(text.ids[None], use_cache=False).logits[0, text.start - 1 : -1].float()
    return draw(scores, temperature, text.numbers) == text.ids[text.start :]


@dataclass(frozen=True)
class Acceptance:
    """`tokens` from `passes` of the large model; `accepted[i]` of `offered[i]` drafts that stood at place i of their pass
    and had only accepted ones before them."""

    tokens: int
    passes: int
    offered: list[int]
    accepted: list[int]

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes


def count(guessed: list[torch.Tensor], drafts: int) -> Acceptance:
    """Pass after pass over each text of `guessed` (see `hits`): up to `drafts` drafts, ended by the first wrong one, whose
    place the large model's own token takes."""
    tokens = passes = 0
    offered, accepted = [0] * drafts, [0] * drafts
    for text in guessed:
        at = 0
        while at < len(text):
            passes += 1
            for place in range(drafts):
                if at == len(text):
                    break
                offered[place] += 1
                if not text[at]:
                    break
                accepted[place] += 1
                at += 1
            at += 1  # the token that the pass itself chooses
        tokens += len(text)
    return Acceptance(tokens, passes, offered, accepted)


def names_again(text: Text, names: frozenset[int]) -> torch.Tensor:
    """Which tokens of the continuation are in `names` (token ids) and stand further up in the text too: bool [tokens]."""
    ids = text.ids.tolist()
    return torch.tensor([ids[at] in names and ids[at] in ids[:at] for at in range(text.start, len(ids))])


def draw_prompts(amount: int, seed: int) -> list[str]:
    """Beginnings of stories: those of `STARTS`, then drawn ones."""
    rng = random.Random(f"{seed}/acceptance")
    drawn = (f"Once upon a time, a {rng.choice(words.TRAITS)} {rng.choice(list(words.ANIMALS))}" for _ in range(amount))
    return [*STARTS, *drawn][:amount]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DATA / "story", help="folder with model and tokenizer")
    parser.add_argument("--draft", type=Path, default=DATA / "story-draft", help="folder with the draft model")
    parser.add_argument("--prompts", type=int, default=20, help="stories per row of the table")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the sampled stories")
    parser.add_argument("--drafts", type=int, default=3, help="drafts per pass")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model, draft = (AutoModelForCausalLM.from_pretrained(path).eval() for path in (args.model, args.draft))
    prompts = draw_prompts(args.prompts, args.seed)
    greedy, sampled = (write(model, tokenizer, prompts, heat, args.seed) for heat in (0.0, args.temperature))
    rows = {
        "greedy, likeliest": [hits(draft, text, 0.0) for text in greedy],
        f"temperature {args.temperature:g}, likeliest": [hits(draft, text, 0.0) for text in sampled],
        f"temperature {args.temperature:g}, same number": [hits(draft, text, args.temperature) for text in sampled],
    }
    places = "  ".join(f"draft {place + 1}" for place in range(args.drafts))
    spelt = [tokenizer(f" {name}", add_special_tokens=False).input_ids for name in words.GIRLS + words.BOYS]
    names = frozenset(ids[0] for ids in spelt if len(ids) == 1)
    print(f"{'story, draft':32}  tokens  guessed  names again  {places}  tokens per pass")
    for name, guessed in rows.items():
        texts = greedy if name.startswith("greedy") else sampled
        again = torch.cat([hit[names_again(text, names)] for hit, text in zip(guessed, texts, strict=True)])
        found = count(guessed, args.drafts)
        right = torch.cat(guessed).double().mean().item()
        repeated, shares = (
            again.double().mean().item(),
            "  ".join(f"{a / max(1, o):7.1%}" for a, o in zip(found.accepted, found.offered, strict=True)),
        )
        print(f"{name:32}  {found.tokens:6,}  {right:7.1%}  {repeated:11.1%}  {shares}  {found.tokens_per_pass:15.2f}")


if __name__ == "__main__":
    main()
