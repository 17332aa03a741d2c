"""What quantization costs: nats per token and the share of greedy tokens that stay the same, for nanoinfer and its peers.

All engines score the same texts: each token's negative log-probability given those before it, and the token that would
have been chosen greedily there. (In generated text, one early difference would change everything after it.)
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from nanoinfer.bench.processes import EngineFailure
from nanoinfer.bench.report import table
from nanoinfer.bench.session import Settings

Texts = list[list[int]]
AT_ONCE = 16  # texts per question to a worker
AT_LEAST = 8  # texts that the model writes, so that they differ enough for a standard error
SAMPLED = "sampled text"
# The first one is what all others are compared with.
OURS = ["nanoinfer:dtype=float32", "nanoinfer:dtype=bfloat16"]
OURS += [
    f"nanoinfer:dtype={dtype},quantization={kind}" for kind in ("int8", "int4") for dtype in ("float32", "bfloat16")
]
OURS += ["nanoinfer:dtype=float32,kv_cache_dtype=int8"]


@dataclass(frozen=True)
class Quality:
    """One engine's figures for one kind of text; those with `change` are None for the engine that it is compared with.

    `nats`: per token, in the mean. `change`: how many more than the reference has, and `error`, its standard error over
    texts. `same`: share of the positions at which the greedy token is the reference's.
    """

    engine: str
    text: str
    tokens: int
    nats: float
    change: float | None
    error: float | None
    same: float | None


def sampled_texts(path: Path, tokens: int, seed: int = 0, at_once: int = 32) -> Texts:
    """At least `tokens` tokens of text that the model itself writes at temperature 1, in float32: each begins with the
    beginning-of-text token and goes to the end token, to the end of the context, or to its share of `tokens` among AT_LEAST
    texts. No more are sampled than are needed, at most `at_once` together. ValueError if the model has no such first token.
    """
    from nanoinfer import LLM, SamplingParams

    llm = LLM(path, dtype="float32", max_running_requests=at_once, generation_config="none")
    bos = json.loads((path / "config.json").read_text()).get("bos_token_id")
    if not isinstance(bos, int):
        raise ValueError(f"{path}: its config has no bos_token_id to begin a text with")
    texts: Texts = []
    # Room for the first token, and for the one that scoring makes.
    longest = min(llm.config.max_context_len - 2, -(-tokens // AT_LEAST))
    with tqdm(total=tokens, desc="sampling text", unit="token") as bar:
        while (missing := tokens - sum(map(len, texts))) > 0:
            seeds = range(seed + len(texts), seed + len(texts) + min(at_once, -(-missing // longest)))
            params = [SamplingParams(max_new_tokens=longest, temperature=1.0, seed=each) for each in seeds]
            for output in llm.generate([[bos]] * len(params), params, use_tqdm=False):
                texts.append([bos, *output.token_ids])
                bar.update(len(texts[-1]))
    return texts


def written_texts(path: Path, file: Path, tokens: int) -> Texts:
    """About the first `tokens` tokens of a file with a JSON document per line, `{"text": ...}` or `{"messages": ...}`: one
    document after another (see data/README.md), in pieces as long as the model's context. ValueError for another file."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    length = json.loads((path / "config.json").read_text())["max_position_embeddings"] - 1  # room for a token
    ids: list[int] = []
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                document = json.loads(line)
                if "messages" in document:
                    text = tokenizer.apply_chat_template(document["messages"], tokenize=False)
                else:
                    text = f"{tokenizer.bos_token}{document['text']}{tokenizer.eos_token}"
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ValueError(f"{file}, line {number}: must be a JSON object with text or messages") from error
            ids += tokenizer(text, add_special_tokens=False).input_ids
            if len(ids) >= tokens:
                break
    return [ids[start : start + length] for start in range(0, len(ids), length) if len(ids) - start > 1]


def measure_quality(
    path: Path, dtype: str, texts: Mapping[str, Texts], settings: Settings
) -> tuple[list[Quality], dict[str, str]]:
    """Score `texts` (by kind) with all engines, one after another; the first is the reference. Returns the figures, and why
    an engine has none."""
    reference: dict[str, Mapping[str, Any]] = {}
    figures, failed = [], {}
    total = len(settings.engines) * sum(len(each) for each in texts.values())
    with tqdm(total=total, desc="bench quality", unit="text") as bar:
        for spec in settings.engines:
            bar.set_postfix_str(spec.name)
            try:
                with spec.start(str(path), dtype, settings.threads, settings.timeout) as worker:
                    for kind, several in texts.items():
                        scores: dict[str, Any] = {"nats": [], "greedy": []}
                        for start in range(0, len(several), AT_ONCE):
                            answer = worker.ask({"score": several[start : start + AT_ONCE]})
                            for key, values in scores.items():
                                values += answer[key]
                            bar.update(len(answer["nats"]))
                        reference.setdefault(kind, scores)
                        figures.append(_quality(spec.name, kind, scores, reference[kind]))
            except EngineFailure as failure:
                failed[spec.name] = " | ".join(str(failure).splitlines())
                if spec is settings.engines[0]:  # what the others are compared with
                    raise ValueError(f"{spec.name}: {failed[spec.name]}") from failure
    return figures, failed


def _quality(engine: str, kind: str, scores: Mapping[str, Any], reference: Mapping[str, Any]) -> Quality:
    counts = np.array([len(each) for each in scores["nats"]])
    nats = np.array([sum(each) for each in scores["nats"]])
    tokens = int(counts.sum())
    mean = float(nats.sum() / tokens)
    if scores is reference:
        return Quality(engine, kind, tokens, mean, None, None, None)
    more = nats - np.array([sum(each) for each in reference["nats"]])
    change = float(more.sum() / tokens)
    scatter = more - change * counts  # of a ratio of two sums: each text's distance from the common ratio
    error = math.sqrt(float((scatter**2).sum())) / tokens
    pairs = zip(chain(*scores["greedy"]), chain(*reference["greedy"]), strict=True)
    return Quality(engine, kind, tokens, mean, change, error, sum(a == b for a, b in pairs) / tokens)


def format_quality(figures: Sequence[Quality], failed: Mapping[str, str]) -> str:
    """One row per engine, with columns for each kind of text."""
    head, rows = ["engine"], {each.engine: [each.engine] for each in figures}
    for kind in dict.fromkeys(each.text for each in figures):
        of_kind = [each for each in figures if each.text == kind]
        what = "nats per token" if kind == SAMPLED else "perplexity"
        head += [f"{what}, {kind} ({of_kind[0].tokens:,} tokens)", "more nats than the first", "same greedy token"]
        for each in of_kind:
            change = "" if each.change is None else f"{round(each.change, 5) + 0.0:+.5f} ± {each.error:.5f}"
            value = each.nats if kind == SAMPLED else math.exp(each.nats)
            rows[each.engine] += [f"{value:.4f}", change, "" if each.same is None else f"{each.same:.2%}"]
    cells = [[*row, *["failed"] * (len(head) - len(row))] for row in rows.values()]
    lines = [f"- FAILED: {name}: {reason}" for name, reason in failed.items()]
    lines.append("All engines score the same tokens. ±: standard error over texts.")
    return "\n".join([table(head, cells), "", *lines])
