"""Train the story model: a small Llama, on the CPU, with exact resume, saved as Hugging Face files.

Documents are concatenated, each `<s> ... </s>`; a sequence starts at a document and covers as many as fit. The loop is in
`training_loop`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm
from training_loop import LONG, add_arguments, batch_of_step, resume, train_steps
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

DATA = Path(__file__).parent
TOKENS_PER_STEP = 8192
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
    done_before = resume(args, model, optimizer)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters:,} parameters; {len(ids):,} training tokens in {len(starts):,} documents")

    forward = torch.compile(model, dynamic=False) if args.compile else model

    def loss_of(step: int) -> torch.Tensor:
        batch = batch_of_step(step, ids, starts, args.seed, TOKENS_PER_STEP)
        with torch.autocast("cpu", torch.bfloat16):
            return forward(input_ids=batch, labels=batch, use_cache=False).loss

    def report() -> str:
        return f"validation loss {evaluate(model, valid_ids, LONG, limit=64):.4f}"

    seconds = train_steps(args, model, optimizer, done_before, loss_of, report)
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
    add_arguments(parser, lr=3e-3, warmup=100)
    parser.add_argument(
        "--compile", action="store_true", help="compile the model (needs a C++ compiler; about 1.3x as fast)"
    )
    train(parser.parse_args())


if __name__ == "__main__":
    main()
