"""A Llama in a page of numpy, in float64: for tests of many short sequences, where transformers takes most of the time."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

Past = list[tuple[np.ndarray, np.ndarray]]  # K and V [T, Hk, D] of each layer


class PlainLlama:
    """Reads a checkpoint without biases and without a stretched rotary table (tests/numerics/test_plain_llama.py)."""

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
