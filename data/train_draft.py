"""Train the draft model of the story model: two narrow layers that guess what the story model says next.

The first steps learn from the text of the corpus, which costs no pass of the story model. The others are distillation:
the target of each position is the story model's whole distribution, not the one token that stands in the text.

The loop is in `training_loop`, as that of `train_model`. `--out` is replaced at every checkpoint, so the draft model can be
tried while it learns.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from train_model import DATA, build_optimizer, encode, save
from training_loop import LONG, add_arguments, batch_of_step, resume, train_steps
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

TOKENS_PER_STEP = 4096
SIZE_LIMIT = 2 * 2**20


def build_draft(config: LlamaConfig, layers: int, hidden_size: int, intermediate_size: int) -> LlamaForCausalLM:
    """A fresh model in float32 with the vocabulary, special tokens, head size and positions of `config`."""
    config = copy.deepcopy(config)
    heads = hidden_size // config.head_dim
    config.update(
        {
            "num_hidden_layers": layers,
            "hidden_size": hidden_size,
            "intermediate_size": intermediate_size,
            "num_attention_heads": heads,
            "num_key_value_heads": max(1, heads // 2),
        }
    )
    return LlamaForCausalLM(config)


def text_loss(draft: LlamaForCausalLM, batch: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy (nats per token) with the next token of the text; `batch` is int64 [sequences, length]."""
    return draft(input_ids=batch, labels=batch, use_cache=False).loss


def teacher_logits(teacher: LlamaForCausalLM, batch: torch.Tensor) -> torch.Tensor:
    """The teacher's logits [sequences, length, vocabulary], float32, without gradients."""
    with torch.no_grad():
        return teacher(input_ids=batch, use_cache=False).logits


def distillation_loss(draft: LlamaForCausalLM, batch: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean Kullback-Leibler divergence (nats per token) of the draft's distribution from the teacher's; `targets` are the
    teacher's logits."""
    expected = targets.log_softmax(dim=-1)
    found = draft(input_ids=batch, use_cache=False).logits.log_softmax(dim=-1)
    return (expected.exp() * (expected - found)).sum(dim=-1).mean()


@torch.no_grad()
def evaluate(teacher: LlamaForCausalLM, draft: LlamaForCausalLM, ids: np.ndarray, limit: int) -> dict[str, float]:
    """Over at most `limit` sequences of `LONG` ids: `text`, the draft's mean loss on the text; `divergence` from the
    teacher (both nats per token); and `agreement`, how many of the teacher's likeliest tokens are the draft's too, in 0..1.
    """
    draft.eval()
    count = min(len(ids) // LONG, limit)
    rows = torch.from_numpy(ids[: count * LONG].astype(np.int64)).view(count, LONG)
    sums = {"text": 0.0, "divergence": 0.0, "agreement": 0.0}
    for part in rows.split(4):
        targets = teacher_logits(teacher, part)
        found = draft(input_ids=part, labels=part, use_cache=False)
        sums["text"] += found.loss.item() * len(part)
        sums["divergence"] += distillation_loss(draft, part, targets).item() * len(part)
        sums["agreement"] += (targets.argmax(-1) == found.logits.argmax(-1)).float().mean().item() * len(part)
    draft.train()
    return {name: value / count for name, value in sums.items()}


def save_draft(draft: LlamaForCausalLM, out: Path) -> int:
    """Write a copy of `draft` in bfloat16 to `out`, without tokenizer files: it reads the story model's tokens.

    Returns:
        Size of the folder in bytes.

    Raises:
        ValueError: the folder is larger than `SIZE_LIMIT`; `out` is unchanged.
    """
    return save(copy.deepcopy(draft).to(torch.bfloat16), None, out, SIZE_LIMIT)


def train(args: argparse.Namespace) -> None:
    """Train from scratch or from the checkpoint, save, evaluate on the whole validation split."""
    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.teacher)
    teacher = AutoModelForCausalLM.from_pretrained(args.teacher).eval()
    ids, starts = encode(args.corpus / "train.jsonl", tokenizer)
    valid_ids, _ = encode(args.corpus / "valid.jsonl", tokenizer)
    torch.manual_seed(args.seed)
    draft = build_draft(teacher.config, args.layers, args.hidden_size, args.intermediate_size)
    optimizer = build_optimizer(draft, args.lr)
    done_before = resume(args, draft, optimizer)
    print(f"{sum(parameter.numel() for parameter in draft.parameters()):,} parameters; {len(ids):,} training tokens")

    def compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return torch.compile(function, dynamic=False) if args.compile else function

    on_text, on_teacher, ask = compiled(text_loss), compiled(distillation_loss), compiled(teacher_logits)

    def loss_of(step: int) -> torch.Tensor:
        batch = batch_of_step(step, ids, starts, args.seed, TOKENS_PER_STEP)
        return on_text(draft, batch) if step < args.text_steps else on_teacher(draft, batch, ask(teacher, batch))

    def report() -> str:
        found = evaluate(teacher, draft, valid_ids, limit=16)
        return ", ".join(f"{name} {value:.4f}" for name, value in found.items())

    saved = partial(save_draft, draft, args.out)
    seconds = train_steps(args, draft, optimizer, done_before, loss_of, report, saved)
    found = evaluate(teacher, draft.to(torch.bfloat16).float(), valid_ids, limit=len(valid_ids))
    size = sum(file.stat().st_size for file in args.out.iterdir())
    print(f"{args.steps * TOKENS_PER_STEP:,} tokens in {seconds:,.0f} s; {args.out} takes {size:,} bytes")
    print("whole validation split: " + ", ".join(f"{name} {value:.4f}" for name, value in found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=DATA / "build", help="folder with train.jsonl and valid.jsonl")
    parser.add_argument("--teacher", type=Path, default=DATA / "story", help="folder with the story model")
    parser.add_argument("--checkpoint", type=Path, default=DATA / "build" / "draft.pt", help="written while training")
    parser.add_argument("--out", type=Path, default=DATA / "story-draft", help="folder for the draft model")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--intermediate-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=1500, help=f"optimizer steps of {TOKENS_PER_STEP} tokens")
    parser.add_argument("--text-steps", type=int, default=1150, help="the first of them learn from the text alone")
    add_arguments(parser, lr=5e-3, warmup=50)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--compile", action="store_true", help="compile both models (needs a C++ compiler)")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
