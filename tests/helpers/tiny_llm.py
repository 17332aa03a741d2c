"""An LLM around the tiny model of oracles.py, with a tokenizer and a chat template; and calls whose outputs are known."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from nanoinfer import LLM, RequestOutput, SamplingParams
from nanoinfer.model.loader import LoadedModel
from nanoinfer.requests.seeds import derived_seed
from tests.helpers.oracles import VOCAB, Oracle, make_model

TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}{% if add_generation_prompt %}w1{% endif %}"


def words(token_ids: Sequence[int]) -> str:
    """The text that the tiny tokenizer encodes to these tokens."""
    return " ".join(f"w{token}" for token in token_ids)


def make_llm_model(path: Path) -> LoadedModel:
    """The tiny model, with a tokenizer (written in Rust, as real ones are) whose token 5 is the word w5."""
    save_tokenizer(path, VOCAB)
    return make_model(path)


def save_tokenizer(path: Path, size: int) -> None:
    """The tokenizer of `make_llm_model`, with so many words."""
    tokenizer = Tokenizer(WordLevel({f"w{token}": token for token in range(size)}, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(path)


def tiny_llm(model: LoadedModel, draft_model: LoadedModel | None = None, **fields: Any) -> LLM:
    """An LLM around a model that is loaded already, and perhaps its draft model; `fields` as LLM takes them."""
    context = fields.get("max_context_len", model.max_context_len)
    with (
        patch("nanoinfer.llm.load_model", lambda *args, **kwargs: replace(model, max_context_len=context)),
        patch("nanoinfer.speculative.load.load_model", lambda *args, **kwargs: draft_model),
    ):
        return LLM("tiny", draft_model=None if draft_model is None else "draft", **fields)


@dataclass
class Job:
    """One call of an LLM, and the tokens of each completion of each of its prompts."""

    how: str  # generate, chat, stream, stream_chat, or drop: a stream that is left after `pieces` pieces
    prompts: list[list[int]]
    params: list[SamplingParams]
    wanted: list[list[list[int]]]
    pieces: int = 0
    timeout_s: float | None = None

    @property
    def sent(self) -> list[list[int]]:
        """The prompts as the engine gets them: the template adds w1 to a conversation."""
        return [[*prompt, 1] if "chat" in self.how else prompt for prompt in self.prompts]


def random_job(rng: np.random.Generator, oracle: Oracle, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> Job:
    """A call with some of `prompts`, greedy or seeded."""
    how = str(rng.choice(["generate", "generate", "generate", "stream", "drop", "drop", "chat", "stream_chat"]))
    job = Job(how, [], [], [], pieces=int(rng.integers(0, 8)))
    if rng.random() < 0.05:
        job.timeout_s = float(rng.uniform(1e-6, 0.02))
    for _ in range(int(rng.integers(1, 5)) if how in ("generate", "chat") else 1):
        prompt = list(prompts[int(rng.integers(len(prompts)))])
        seed = int(rng.integers(3)) if rng.random() < 0.3 else None
        n = int(rng.integers(1, 3)) if seed is not None else 1
        seeds = [None] if seed is None else [derived_seed(seed, i) for i in range(n)]
        job.prompts.append(prompt)
        found = [oracle.continuation(job.sent[-1], seed) for seed in seeds]
        if any(one is None for one in found):
            job.prompts.pop()
            continue
        count = int(rng.integers(1, max_new_tokens + 1))
        job.params.append(
            SamplingParams(max_new_tokens=count, temperature=0.0 if seed is None else 1.0, seed=seed, n=len(seeds))
        )
        job.wanted.append([one.tokens[:count] for one in found if one is not None])
    return job if job.prompts else random_job(rng, oracle, prompts, max_new_tokens)


def check_completion(tokens: list[int], text: str, reason: str | None, wanted: list[int], may_be_cut: bool) -> None:
    """`may_be_cut`: it may have ended before its last token, by an abort or a timeout."""
    assert text.split() == words(tokens).split(), "text and tokens differ"
    if may_be_cut and reason in ("abort", "timeout", None):
        assert tokens == wanted[: len(tokens)], "a wrong token"
    else:
        assert (tokens, reason) == (wanted, "length"), "wrong tokens"


def check_outputs(job: Job, outputs: Sequence[RequestOutput], may_be_cut: Any) -> None:
    """The outputs of `generate` or `chat`; `may_be_cut(request_id)`."""
    assert len(outputs) == len(job.prompts)
    for output, wanted in zip(outputs, job.wanted, strict=True):
        for completion, tokens in zip(output.outputs, wanted, strict=True):
            cut = job.timeout_s is not None or may_be_cut(output.request_id)
            check_completion(completion.token_ids, completion.text, completion.finish_reason, tokens, cut)
