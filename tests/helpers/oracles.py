"""What tiny models continue a prompt with, one request alone and without a cache: every token is known beforehand.

`Oracle`: by PlainLlama, a Llama in a page of numpy, greedily or with our random numbers. A continuation is used only if it
is clear: at every token the best logit leads by MARGIN, or the random number is that far from where another token begins.
Otherwise float32's rounding, which differs from batch to batch, could choose another.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.model.attention import select_attention_backend
from nanoinfer.model.loader import LoadedModel, load_model
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.requests.seeds import uniform
from nanoinfer.sampling_params import LogitsProcessor
from tests.helpers.checkpoints import save_checkpoint

MARGIN = 2e-3
VOCAB = 32
TINY_MODEL = {  # a few thousand parameters
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "initializer_range": 0.5,  # logits far apart
    "eos_token_id": None,
}


Past = list[tuple[np.ndarray, np.ndarray]]  # K and V [T, Hk, D] of each layer


class PlainLlama:
    """Reads a checkpoint without biases and without a stretched rotary table (tests/families/test_model_families.py)."""

    def __init__(self, path: Path):
        config = json.loads((path / "config.json").read_text())
        assert config["architectures"] == ["LlamaForCausalLM"]
        assert config["rope_parameters"]["rope_type"] == "default"
        self.heads, self.eps = config["num_attention_heads"], config["rms_norm_eps"]
        self.dim, self.num_layers = config["head_dim"], config["num_hidden_layers"]
        self.frequencies = config["rope_parameters"]["rope_theta"] ** -(np.arange(0, self.dim, 2) / self.dim)
        loaded = load_file(path / "model.safetensors")
        self.weights = {name.removesuffix(".weight"): weight.astype(np.float64) for name, weight in loaded.items()}

    def __call__(self, ids: list[int], past: Past | None) -> tuple[np.ndarray, Past]:
        """Logits [T, V] of new tokens, and K/V of all: those in `past` come before."""
        start, kept = len(past[0][0]) if past else 0, []
        x = self.weights["model.embed_tokens"][ids]
        positions = np.arange(start, start + len(ids))
        angles = np.outer(positions, self.frequencies)[:, None]
        hidden = np.arange(start + len(ids)) > positions[:, None]
        for layer in range(self.num_layers):
            name = f"model.layers.{layer}"
            h = self._norm(x, f"{name}.input_layernorm")
            q, k, v = (self._linear(h, f"{name}.self_attn.{each}_proj") for each in "qkv")
            q, k, v = (each.reshape(len(ids), -1, self.dim) for each in (q, k, v))
            q, k = _rotated(q, angles), _rotated(k, angles)
            if past:
                k, v = (np.concatenate(pair) for pair in zip(past[layer], (k, v), strict=True))
            kept.append((k, v))
            shared = self.heads // k.shape[1]
            scores = np.einsum("thd,shd->hts", q, k.repeat(shared, axis=1)) / self.dim**0.5
            scores[:, hidden] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            attended = np.einsum("hts,shd->thd", weights, v.repeat(shared, axis=1))
            x = x + self._linear(attended.reshape(len(ids), -1), f"{name}.self_attn.o_proj")
            h = self._norm(x, f"{name}.post_attention_layernorm")
            gate, up = (self._linear(h, f"{name}.mlp.{each}_proj") for each in ("gate", "up"))
            x = x + self._linear(gate / (1 + np.exp(-gate)) * up, f"{name}.mlp.down_proj")
        head = "lm_head" if "lm_head" in self.weights else "model.embed_tokens"
        return self._linear(self._norm(x, "model.norm"), head), kept

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.weights[name].T

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + self.eps) * self.weights[name]


def _rotated(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    first, second = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


@dataclass(frozen=True)
class Continuation:
    """What one prompt comes to: tokens, the log-probability of each, and those of the prompt's tokens."""

    tokens: list[int]
    logprobs: list[float]
    prompt_logprobs: list[float | None]


class Oracle:
    """Continuations by PlainLlama, which is transformers' Llama, remembered (the most recent `capacity` of them)."""

    def __init__(self, path: Path, num_tokens: int, capacity: int = 500):
        self.num_tokens, self.capacity = num_tokens, capacity
        self._model: Callable[[list[int], Any], tuple[Any, Any]] = PlainLlama(path)  # of new tokens and K/V before them
        self._known: OrderedDict[tuple[Any, ...], Continuation | None] = OrderedDict()

    def continuation(
        self, prompt: Sequence[int], seed: int | None = None, processor: LogitsProcessor | None = None
    ) -> Continuation | None:
        """Greedy without `seed`; with a `processor`, by what it makes of the logits. None when it is not clear."""
        key = (*prompt, "seed", seed, processor)
        if key not in self._known:
            self._known[key] = self._compute(list(prompt), seed, processor)
            if len(self._known) > self.capacity:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]

    @torch.no_grad()
    def _compute(self, prompt: list[int], seed: int | None, processor: LogitsProcessor | None) -> Continuation | None:
        ids = list(prompt)
        logprobs = []
        past = None
        for index in range(self.num_tokens):
            new = ids if past is None else ids[-1:]
            logits, past = self._model(new, past)
            table = torch.as_tensor(logits).double().log_softmax(-1)
            if index == 0:
                of_prompt = table[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist()
            scores = table[-1] if processor is None else processor(np.array(ids), table[-1].clone()).log_softmax(-1)
            if seed is None:
                best = scores.topk(2)
                token, margin = int(best.indices[0]), float(best.values[0] - best.values[1])
            else:
                token, margin = _drawn(scores.exp().numpy(), float(uniform([seed], [index])[0]))
            if margin < MARGIN:
                return None
            logprobs.append(float(table[-1, token]))
            ids.append(token)
        return Continuation(ids[len(prompt) :], logprobs, [None, *of_prompt])


class NetworkOracle(Oracle):
    """Continuations by a network of ours, one request alone and every token in a pass of its own: for quantized weights,
    which `transformers` does not have. A row of their logits is the same bits in any pass."""

    def __init__(self, model: LoadedModel, num_tokens: int, capacity: int = 500):
        self.num_tokens, self.capacity = num_tokens, capacity
        self._known = OrderedDict()
        slots = range(model.max_context_len)
        backend = select_attention_backend("auto", model.dtype, model.device)
        rows = ReqToTokenPool(1, len(slots))
        rows.req_to_token[0] = torch.arange(len(slots))
        runner = ModelRunner(model.model, rows, model.new_kv_pool(len(slots)), backend)

        def network(ids: list[int], past: int | None) -> tuple[torch.Tensor, int]:
            """K/V is in the first slots, and `past` is their number."""
            first = past or 0
            of_each = [
                runner.forward_extend(torch.tensor([token]), [0], [slot + 1], [slot], [slot])[0]
                for slot, token in enumerate(ids, start=first)
            ]
            return torch.cat(of_each), first + len(ids)

        self._model = network


def _drawn(probabilities: np.ndarray, number: float) -> tuple[int, float]:
    """The token whose share of [0, 1) holds `number`, and how far that is from the share's ends."""
    ends = np.cumsum(probabilities)
    token = int(np.searchsorted(ends, number, side="right"))
    return token, float(np.abs(ends - number).min())


def make_model(path: Path) -> LoadedModel:
    """The tiny model, saved to `path` and loaded by the engine's own loader."""
    return load_model(save_checkpoint(path, "llama", seed=3, **TINY_MODEL), torch.float32)


def make_draft_model(path: Path) -> LoadedModel:
    """A smaller model with the same vocabulary, which is hardly ever right."""
    config = {**TINY_MODEL, "num_hidden_layers": 1, "hidden_size": 8}
    return load_model(save_checkpoint(path, "llama", seed=4, **config), torch.float32)
