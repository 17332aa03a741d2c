"""Train the story model: a small Llama, on the CPU, with exact resume, saved as Hugging Face files.

Step `i` draws its batch from a generator seeded with `(seed, i)`, so that a resumed run sees the same batches as an
uninterrupted one. Documents are concatenated, each `<s> ... </s>`; a sequence starts at a document and covers as many
as fit. Most steps read short sequences; every `LONG_EVERY`-th reads long ones, so that every position up to the limit
is trained.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import time
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

DATA = Path(__file__).parent
TOKENS_PER_STEP = 8192
SHORT, LONG, LONG_EVERY = 256, 1024, 5
SIZE_LIMIT = 12 * 2**20


def encode(path: Path, tokenizer: PreTrainedTokenizerFast) -> tuple[np.ndarray, np.ndarray]:
    """All documents of `path`, concatenated.

    Returns:
        ids [tokens], uint16, each document `<s> ... </s>`, and the index of every `<s>` [documents], int64.
    """
    texts = []
    with path.open(encoding="utf-8") as file:
        for line in tqdm(file, desc=f"reading {path.name}", unit="doc"):
            document = json.loads(line)
            if "messages" in document:
                texts.append(tokenizer.apply_chat_template(document["messages"], tokenize=False))
            else:
                texts.append(tokenizer.bos_token + document["text"] + tokenizer.eos_token)
    encoded = tokenizer(texts, add_special_tokens=False).input_ids
    starts = np.cumsum([0, *(len(ids) for ids in encoded[:-1])])
    return np.concatenate([np.array(ids, dtype=np.uint16) for ids in encoded]), starts


def draw_batch(
    ids: np.ndarray, starts: np.ndarray, rng: np.random.Generator, length: int, tokens: int = TOKENS_PER_STEP
) -> torch.Tensor:
    """`tokens` ids as [tokens // length, length], int64; every sequence starts at a document."""
    usable = starts[: np.searchsorted(starts, len(ids) - length, side="right")]
    picked = rng.choice(usable, size=tokens // length)
    return torch.from_numpy(np.stack([ids[start : start + length] for start in picked]).astype(np.int64))


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A fresh model in float32: five layers, eight query heads on two key/value heads."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        num_hidden_layers=5,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=448,
        max_position_embeddings=LONG,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def build_optimizer(model: LlamaForCausalLM, lr: float) -> torch.optim.AdamW:
    """AdamW that decays matrices only."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def learning_rate(step: int, steps: int, peak: float, warmup: int) -> float:
    """Linear warm-up, then a cosine down to a hundredth of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


@torch.no_grad()
def evaluate(model: LlamaForCausalLM, ids: np.ndarray, length: int, limit: int | None = None) -> float:
    """Mean loss (nats per token, float32) over `ids` split into sequences of `length`; at most `limit` of them."""
    model.eval()
    count = min(len(ids) // length, limit or len(ids))
    rows = torch.from_numpy(ids[: count * length].astype(np.int64)).view(count, length)
    total = sum(model(input_ids=part, labels=part, use_cache=False).loss.item() * len(part) for part in rows.split(16))
    model.train()
    return total / count


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast | None, out: Path, limit: int = SIZE_LIMIT) -> int:
    """Write model and tokenizer (None: only the model) to a folder beside `out`, then replace `out` with it.

    Returns:
        Size of the folder in bytes.

    Raises:
        ValueError: the folder is larger than `limit` bytes; `out` is unchanged.
    """
    fresh, old = out.with_name(out.name + ".new"), out.with_name(out.name + ".old")
    for folder in (fresh, old):
        shutil.rmtree(folder, ignore_errors=True)
    config = model.config
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    model.save_pretrained(fresh)
    if tokenizer is not None:
        tokenizer.save_pretrained(fresh)
    for file in fresh.iterdir():
        file.chmod(0o644)
    size = sum(file.stat().st_size for file in fresh.rglob("*"))
    if size > limit:
        raise ValueError(f"{fresh} takes {size:,} bytes, limit {limit:,}")
    if out.exists():
        os.rename(out, old)
    os.rename(fresh, out)
    shutil.rmtree(old, ignore_errors=True)
    return size


def train(args: argparse.Namespace) -> None:
    """Train from scratch or from the checkpoint, evaluate on the whole validation split, save."""
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    ids, starts = encode(args.corpus / "train.jsonl", tokenizer)
    valid_ids, _ = encode(args.corpus / "valid.jsonl", tokenizer)
    torch.manual_seed(args.seed)
    model = build_model(tokenizer)
    optimizer = build_optimizer(model, args.lr)
    first, seconds = 0, 0.0
    if args.resume:
        state = torch.load(args.checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, seconds = state["step"], state["seconds"]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters:,} parameters; {len(ids):,} training tokens in {len(starts):,} documents")

    forward = torch.compile(model, dynamic=False) if args.compile else model
    clock = time.perf_counter() - seconds
    bar = tqdm(range(first, args.steps), initial=first, total=args.steps, desc="training", unit="step", mininterval=5)
    for step in bar:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr, args.warmup)
        length = LONG if step % LONG_EVERY == LONG_EVERY - 1 else SHORT
        batch = draw_batch(ids, starts, np.random.default_rng((args.seed, step)), length)
        with torch.autocast("cpu", torch.bfloat16):
            loss = forward(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
        done = step + 1
        if done % args.save_every == 0 or done == args.steps:
            bar.write(f"step {done}: validation loss {evaluate(model, valid_ids, LONG, limit=64):.4f}")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": done}
            state["seconds"] = time.perf_counter() - clock
            partial = args.checkpoint.with_suffix(".part")
            torch.save(state, partial)
            os.replace(partial, args.checkpoint)

    seconds = time.perf_counter() - clock
    tokens = args.steps * TOKENS_PER_STEP
    loss = evaluate(model, valid_ids, LONG)
    size = save(model, tokenizer, args.out)
    print(f"{tokens:,} tokens in {seconds:,.0f} s ({tokens / seconds:,.0f} tokens/s)")
    print(f"validation loss {loss:.4f}, perplexity {math.exp(loss):.3f}; {args.out} takes {size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=DATA / "build", help="folder with train.jsonl and valid.jsonl")
    parser.add_argument(
        "--tokenizer", type=Path, default=DATA / "build" / "tokenizer", help="folder with the tokenizer"
    )
    parser.add_argument(
        "--checkpoint", type=Path, default=DATA / "build" / "checkpoint.pt", help="written while training"
    )
    parser.add_argument("--out", type=Path, default=DATA / "story", help="folder for the finished model")
    parser.add_argument("--steps", type=int, default=2400, help=f"optimizer steps of {TOKENS_PER_STEP} tokens")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--warmup", type=int, default=100, help="steps until the peak")
    parser.add_argument("--save-every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--compile", action="store_true", help="compile the model (needs a C++ compiler; about 1.3x as fast)"
    )
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
