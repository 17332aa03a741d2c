"""Train the adapters of the story model: one that tells in rhymes, one whose stories end well at sea.

The model stays as it is; only the matrices of `low_rank` learn. Every document comes from the grammars while it is
needed: step `i` draws its documents from the seed `(name, seed, i)`, so nothing is read or kept but the model.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from corpus import rhymes, sea, styles, words
from low_rank import Shape, attach, load, save
from sample import Sampler
from tqdm import tqdm
from training_loop import learning_rate
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

DATA = Path(__file__).parent
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
ADAPTERS = {
    "rhymes": Shape(8, 16, ("v_proj", "o_proj", "up_proj", "down_proj")),
    "sea": Shape(4, 8, ATTENTION + MLP),
}
SIZE_LIMIT = 400 * 2**10
DOCUMENTS_PER_STEP, VALIDATION_DOCUMENTS, SCORED = 8, 128, 40
PROMPTS = ("Once upon a time, a small fox", "One sunny morning, a", "There was a little dragon named")
QUESTION = "Tell me a story about a fox."


def encode(document: dict[str, object], tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """The ids of one document, as in the training of the model."""
    if "messages" in document:
        text = tokenizer.apply_chat_template(document["messages"], tokenize=False)
    else:
        text = tokenizer.bos_token + document["text"] + tokenizer.eos_token
    return tokenizer(text, add_special_tokens=False).input_ids


def draw_batch(
    rng: random.Random, style: str, count: int, tokenizer: PreTrainedTokenizerFast
) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` documents in `style`, one per row: ids and labels [count, longest], int64; padding has the label -100."""
    rows = [encode(styles.write(rng, style), tokenizer) for _ in range(count)]
    width = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows])
    labels = torch.tensor([row + [-100] * (width - len(row)) for row in rows])
    return ids, labels


@torch.no_grad()
def evaluate(model: PreTrainedModel, style: str, tokenizer: PreTrainedTokenizerFast, seed: int) -> float:
    """Mean loss (nats per token, float32) over `VALIDATION_DOCUMENTS` documents in `style`."""
    rng, total, tokens = random.Random(f"{style}/{seed}/valid"), 0.0, 0
    for _ in range(VALIDATION_DOCUMENTS // DOCUMENTS_PER_STEP):
        ids, labels = draw_batch(rng, style, DOCUMENTS_PER_STEP, tokenizer)
        count = int((labels[:, 1:] != -100).sum())
        total += model(input_ids=ids, labels=labels, use_cache=False).loss.item() * count
        tokens += count
    return total / tokens


def train(model: PreTrainedModel, style: str, tokenizer: PreTrainedTokenizerFast, args: argparse.Namespace) -> None:
    """Give `model` low-rank matrices, train them on `style`, save them."""
    before = evaluate(model, style, tokenizer, args.seed)
    torch.manual_seed(args.seed)
    matrices = attach(model, ADAPTERS[style])
    parameters = sum(matrix.numel() for matrix in matrices.values())
    if 4 * parameters > SIZE_LIMIT:
        raise ValueError(f"{style} has {4 * parameters:,} bytes of matrices, limit {SIZE_LIMIT:,}")
    if args.after:
        load(matrices, args.out / style)
    optimizer = torch.optim.AdamW(matrices.values(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
    start, tokens = time.perf_counter(), 0
    bar = tqdm(range(args.steps), desc=style, unit="step", mininterval=5)
    for step in bar:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr, args.warmup)
        rng = random.Random(f"{style}/{args.seed}/{args.after + step}")
        ids, labels = draw_batch(rng, style, DOCUMENTS_PER_STEP, tokenizer)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(matrices.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tokens += int((labels != -100).sum())
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    seconds = time.perf_counter() - start
    size = save(matrices, ADAPTERS[style], args.out / style)
    after = evaluate(model, style, tokenizer, args.seed)
    print(f"{style}: {parameters:,} parameters, {size:,} bytes; {tokens:,} tokens in {seconds:,.0f} s")
    print(f"{style}: validation loss {before:.4f} without, {after:.4f} with the adapter")


@dataclass(frozen=True)
class Score:
    """What a style promises, counted in one text: how often it is kept, and how often there was a chance."""

    says: str
    count: Callable[[str], tuple[int, int]]


def count_rhymes(text: str) -> tuple[int, int]:
    """How many couplets rhyme, and how many there are: at least one, so that prose counts too."""
    pairs = rhymes.couplets(text)
    return sum(rhymes.rhyme(*pair) for pair in pairs), max(1, len(pairs))


SCORES = {
    "rhymes": Score("couplets rhyme", count_rhymes),
    "sea": Score("stories end at sea", lambda text: (int(sea.ends_at_sea(text)), 1)),
}


def score(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, style: str, seed: int) -> str:
    """How well `SCORED` stories from drawn beginnings, at temperature 0.8, keep what `style` promises."""
    rng = random.Random(f"{seed}/score")
    starts = [
        f"Once upon a time, a {rng.choice(words.TRAITS)} {rng.choice(list(words.ANIMALS))}" for _ in range(SCORED)
    ]
    prompts = tokenizer(starts, padding=True, padding_side="left", return_tensors="pt")
    torch.manual_seed(seed)
    out = model.generate(**prompts, max_new_tokens=300, do_sample=True, temperature=0.8, top_k=0)
    counted = [SCORES[style].count(text) for text in tokenizer.batch_decode(out, skip_special_tokens=True)]
    return f"{sum(kept for kept, _ in counted)} of {sum(chances for _, chances in counted)} {SCORES[style].says}"


def show(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, name: str, seed: int) -> None:
    """Print greedy stories, and how well others keep what the styles promise."""
    greedy = Sampler(model, tokenizer, 0.0)
    for prompt in PROMPTS:
        print(f"### {name}: {prompt}\n{greedy.continue_text(prompt)}\n")
    print(f"### {name}: {QUESTION}\n{greedy.talk((QUESTION,))[-1]['content']}\n")
    for style in SCORES:
        print(f"{name}, temperature 0.8: {score(model, tokenizer, style, seed)}")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(ADAPTERS), help=f"of {', '.join(ADAPTERS)}; all by default")
    parser.add_argument("--model", type=Path, default=DATA / "story", help="folder with model and tokenizer")
    parser.add_argument("--out", type=Path, default=DATA / "adapters", help="folder for the adapters' folders")
    parser.add_argument("--steps", type=int, default=750, help=f"optimizer steps of {DOCUMENTS_PER_STEP} documents")
    parser.add_argument("--lr", type=float, default=1e-2, help="peak learning rate")
    parser.add_argument("--warmup", type=int, default=40, help="steps until the peak")
    parser.add_argument(
        "--after", type=int, default=0, help="continue the adapter in --out, which has learned for so many steps"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if unknown := set(args.names) - set(ADAPTERS):
        parser.error(f"no such adapter: {', '.join(sorted(unknown))}; there are {', '.join(ADAPTERS)}")
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    show(AutoModelForCausalLM.from_pretrained(args.model), tokenizer, "base", args.seed)
    for name in args.names:
        model = AutoModelForCausalLM.from_pretrained(args.model)
        train(model, name, tokenizer, args)
        show(model, tokenizer, name, args.seed)


if __name__ == "__main__":
    main()
