"""Any decoder of transformers on our own pools, where no family of ours fits (`model_impl="transformers"`).

transformers asks its AttentionInterface for the function that computes attention. Ours takes q, k and v of the flattened
batch [1, T], stores K/V in the pool and attends over it, as in a family of ours. Linear layers, and other modules that are
known, become ours, too (transformers_layers.py), so that kernels, few-bit weights and adapters work.

A probe, a pass of two tokens without a pool, records what each attention layer asks for. A model is refused if it asks for
what is not understood, is not causal, or mixes tokens outside attention: its answers would differ from transformers'.
"""

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn

from nanoinfer.errors import UnsupportedModelError, WeightMismatchError
from nanoinfer.model.config import ModelConfig, end_tokens, with_end_tokens
from nanoinfer.model.gguf import import_gguf
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.kernels import Kernels
from nanoinfer.model.layers.linear import quantization_of
from nanoinfer.model.layers.logits_processor import LogitsOutput, compute_logits, hidden_rows
from nanoinfer.model.quantized_checkpoint import QUANTIZE_CONFIG
from nanoinfer.model.rope import RopeScaling
from nanoinfer.model.transformers_attention import POOLED, PROBE, AttentionCall, now, pooled_layers, register
from nanoinfer.model.transformers_layers import (
    WrappedHead,
    adopt_linear,
    adopt_norms,
    is_all,
    known_head,
    replace_module,
)
from nanoinfer.model.transformers_self_attention import adopt_attention
from nanoinfer.requests.gguf_header import GGUFHeader, read_header

STATEFUL = {"linear_attention", "mamba", "mamba2", "conv", "recurrent", "hybrid"}  # kinds of layers
KINDS = ("layer_types", "layers_block_type", "block_types")  # where a config names them
BY_LENGTH = {"dynamic", "longrope"}  # their rotary tables depend on the longest sequence of the batch
# What transformers raises for a config that it cannot read.
CANNOT_READ = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError, StrictDataclassError)
NO_INTERFACE = "does not use transformers' attention interface"
WRONG = ("missing_keys", "unexpected_keys", "mismatched_keys")
FACTS = (
    *("architecture", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "max_position_embeddings", "tie_word_embeddings", "sliding_windows", "eos_token_ids", "source"),
)
# Fields that a probe fills in, and those that nobody reads here.
FOUND_OUT: dict[str, Any] = {
    **dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"), 0),
    **dict.fromkeys(("rms_norm_eps", "rope_theta"), 0.0),
    "sliding_windows": (),
    "intermediate_size": 0,
    "rope_scaling": RopeScaling(),
}
LARGE_GEMMA2 = 46  # the layers of Gemma 2 27B
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


@dataclass(frozen=True)
class TransformersConfig(ModelConfig):
    """What the engine needs to know of a network of transformers. When it is loaded, `num_hidden_layers` counts the layers
    that have K/V of their own, and `num_key_value_heads` and `head_dim` are the largest of any: K/V of others is padded.

    `source`: transformers' version and a digest of config.json, which says all that is not in other fields.
    """

    source: str = ""

    def facts(self) -> dict[str, Any]:
        """As in ModelConfig, without the fields that only say what families of ours compute."""
        return {name: value for name, value in super().facts().items() if name in FACTS}

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "TransformersConfig":
        """Read a checkpoint's config.json, or the metadata of a GGUF file, as transformers does. UnsupportedModelError
        naming what cannot be served."""
        path = Path(path)
        hf = _read_config(path)
        network = _network_class(hf)
        text = hf.get_text_config(decoder=True)
        _refuse(path, hf, text, network)
        length = next((size for name in LENGTHS if isinstance(size := getattr(text, name, None), int)), None)
        if length is None:
            raise UnsupportedModelError(f"config.json: must have one of {', '.join(LENGTHS)}")
        if isinstance(chunk := getattr(text, "attention_chunk_size", None), int):
            length = min(length, chunk)  # within the first chunk, attention in chunks is plain attention
        config = cls(
            architecture=network.__name__,
            vocab_size=text.vocab_size,
            hidden_size=text.hidden_size,
            max_position_embeddings=length,
            tie_word_embeddings=bool(getattr(hf, "tie_word_embeddings", False)),
            eos_token_ids=end_tokens(text.eos_token_id),
            dtype=text.dtype,
            **FOUND_OUT,
            source=f"transformers {transformers.__version__}, {sha256(_config_bytes(path, hf)).hexdigest()}",
        )
        return with_end_tokens(config, path)


def _read_config(path: Path) -> Any:
    if not path.is_file() and not (path / "config.json").is_file():
        raise FileNotFoundError(f"{path}: no config.json there, so this is not a Hugging Face checkpoint")
    if path.is_file():
        import_gguf(path)
        _check_header(read_header(path))
    folder, options = _place(path)
    try:
        return transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, **options)
    except CANNOT_READ as error:
        where = path.name if path.is_file() else "config.json"
        raise UnsupportedModelError(f"{where}: {type(error).__name__}: {error}") from error


def _place(path: Path) -> tuple[str, dict[str, str]]:
    """What `from_pretrained` takes for a checkpoint's folder, or for a GGUF file."""
    return (str(path.parent), {"gguf_file": path.name}) if path.is_file() else (str(path), {})


def _check_header(header: GGUFHeader) -> None:
    """UnsupportedModelError for what transformers' reader of GGUF files leaves out."""
    if (kind := header.get("{arch}.rope.scaling.type", "none")) != "none":
        raise UnsupportedModelError(f"{header.architecture}.rope.scaling.type={kind!r}: must be none, or missing")
    if header.architecture == "gemma2" and header.get("{arch}.block_count") == LARGE_GEMMA2:
        raise UnsupportedModelError(
            f"gemma2.block_count={LARGE_GEMMA2}: the file does not say how 27B scales its scores"
        )


def _config_bytes(path: Path, hf: Any) -> bytes:
    return hf.to_json_string().encode() if path.is_file() else (path / "config.json").read_bytes()


def _network_class(hf: Any) -> Any:
    network = transformers.AutoModelForCausalLM._model_mapping.get(type(hf), None)
    if network is None:
        raise UnsupportedModelError(f"model_type={hf.model_type!r}: transformers has no decoder of text for it")
    named = (hf.architectures or [network.__name__])[0]
    if named != network.__name__ and not named.endswith("Model"):  # a base model has no head, unless that is tied
        raise UnsupportedModelError(f"architecture {named}: transformers' decoder of text is {network.__name__}")
    return network


def _refuse(path: Path, hf: Any, text: Any, network: Any) -> None:
    """UnsupportedModelError for what a config says already."""
    if getattr(hf, "quantization_config", None) or (path / QUANTIZE_CONFIG).is_file():
        raise UnsupportedModelError("quantization_config: with transformers' network, load the original weights")
    if text is not hf:
        raise UnsupportedModelError(f"{network.__name__}: takes other inputs than text")
    if not network._can_set_attn_implementation():
        raise UnsupportedModelError(f"{network.__name__}: {NO_INTERFACE}")
    if getattr(text, "is_causal", None) is False:
        raise UnsupportedModelError("is_causal=False: must be True, the engine's masks are causal")
    kinds = {kind for name in KINDS for kind in getattr(text, name, None) or ()}
    if stateful := kinds & STATEFUL:
        raise UnsupportedModelError(f"layers with a state of their own: {', '.join(sorted(stateful))}")
    ropes = getattr(text, "rope_parameters", None) or {}
    each = ropes.values() if all(isinstance(rope, dict) for rope in ropes.values()) else [ropes]
    if by_length := {rope.get("rope_type") for rope in each} & BY_LENGTH:
        raise UnsupportedModelError(f"rope_type={by_length.pop()!r}: depends on the longest sequence of the batch")


class _Given(nn.Module):
    """In place of the decoder, where only the head of transformers' network is to run: what the decoder has returned."""

    @property
    def decoder(self) -> nn.Module:
        """OPT's head asks for its model's decoder."""
        return self

    def forward(self, *args: Any, **options: Any) -> Any:
        return now.output


class TransformersModel(nn.Module):
    """What ModelRunner calls. `load` reads the weights; arguments and methods are otherwise those of LlamaForCausalLM.

    Its modules are those of transformers' network, and are named as in the checkpoint.
    """

    def __init__(self, config: TransformersConfig, max_len: int, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.config, self.max_len, self._dtype, self._device = config, max_len, dtype, device

    @torch.no_grad()
    def load(self, path: Path) -> None:
        """Read the weights, as strictly as `load_weights`, and probe. Those of a GGUF file are decoded.
        UnsupportedModelError naming what cannot be."""
        hf = _read_config(path)
        folder, options = _place(path)
        register()
        try:
            whole, report = _network_class(hf).from_pretrained(
                folder,
                config=hf,
                dtype=self._dtype,
                attn_implementation=PROBE,
                output_loading_info=True,
                use_safetensors=True,
                **options,
            )
        except CANNOT_READ as error:
            raise UnsupportedModelError(f"{path}: {type(error).__name__}: {error}") from error
        except OSError as error:  # no such file, of weights in this format
            raise FileNotFoundError(f"{path}: {error}") from error
        except SafetensorError as error:
            raise WeightMismatchError(f"{path}: is not a complete checkpoint: {error}") from error
        wrong = [f"{name}: {what.removesuffix('_keys')}" for what in WRONG for name in sorted(map(str, report[what]))]
        if wrong:
            shown = "; ".join(wrong[:10]) + (f"; and {len(wrong) - 10} more" if len(wrong) > 10 else "")
            raise WeightMismatchError(f"{path}: {shown}")
        whole = whole.eval().requires_grad_(False).to(self._device)
        self.num_parameters = whole.num_parameters()
        bodies = [name for name, each in whole.named_children() if isinstance(each, transformers.PreTrainedModel)]
        if len(bodies) != 1:
            raise UnsupportedModelError(f"{path}: {self.config.architecture} has {len(bodies)} decoders, must have one")
        body = bodies[0]
        self._decoder, self._whole = [getattr(whole, body)], [whole]  # in lists: not as modules of those names
        for name, module in whole.named_children():
            self.add_module(name, module)
        output = whole.get_output_embeddings()
        whole._modules[body] = _Given()
        self._probe()
        adopt_norms(self, whole, self._dtype)
        adopt_attention(self, whole, lambda: self._probed(1, 2), self.max_len, self._dtype)
        head = known_head(output, self._dtype, self._head, hf)
        self._logits = self._head if head is None else head
        for name, module in list(self.named_children()):
            if module is output and type(module) is nn.Linear and is_all(self._dtype, module):
                replace_module(self, whole, name, head or WrappedHead(module))
        now.output = None
        whole.set_attn_implementation(POOLED)
        self._decoder[0].set_attn_implementation(POOLED)

    def _probe(self) -> None:
        """Find the attention layers, and give each what it needs."""
        one, calls = self._probed(1, 2)
        other, _ = self._probed(3, 2)
        if not calls:
            raise UnsupportedModelError(f"{self.config.architecture}: {NO_INTERFACE}")
        tolerance = 1e-4 if one.dtype is torch.float32 else 1e-2
        if not torch.allclose(one[1], other[1], rtol=0, atol=tolerance * float(one[1].abs().max())):
            raise UnsupportedModelError(f"{self.config.architecture}: has layers with a state of their own")
        layers = pooled_layers(calls)
        self.config = replace(
            self.config,
            num_hidden_layers=1 + max(layer.layer_id for layer in layers),
            num_attention_heads=max(layer.num_heads for layer in layers),
            num_key_value_heads=layers[0].num_kv_heads,
            head_dim=layers[0].head_dim,
            sliding_windows=tuple(layer.sliding_window for layer in layers),
        )

    def _probed(self, *token_ids: int) -> tuple[torch.Tensor, list[AttentionCall]]:
        """A pass of these tokens without a pool: hidden states, and what attention layers have asked for."""
        now.calls = calls = list[AttentionCall]()
        try:
            return self._decode(torch.tensor(token_ids), torch.arange(len(token_ids))), calls
        finally:
            now.calls = None

    def use_kernels(self, kernels: Kernels, quantization: str | None = None) -> None:
        """As in LlamaForCausalLM."""
        self.kernels = kernels
        adopt_linear(self, self._whole[0], self._dtype, kernels, quantization)
        self.quantization = quantization_of(self)

    def _decode(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """`input_ids` and `positions` [T] → hidden states [T, hidden_size]."""
        ids, places = input_ids[None].to(self._device), positions[None].to(self._device)
        now.output = self._decoder[0](input_ids=ids, position_ids=places, use_cache=False)
        return now.output.last_hidden_state[0]

    def _head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [k, hidden_size] → logits [k, V], with all that the family does to them."""
        now.output.last_hidden_state = hidden[None]
        return self._whole[0](inputs_embeds=hidden[None]).logits[0]

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, input_metadata: InputMetadata) -> LogitsOutput:
        """As LlamaForCausalLM."""
        if input_metadata.max_seq_len > self.max_len and int(positions.max()) >= self.max_len:
            raise ValueError(
                f"seq_lens: the longest is {input_metadata.max_seq_len}, must not exceed max_len={self.max_len}"
            )
        now.metadata, now.turns = input_metadata, {}
        try:
            hidden, rows = self._decode(input_ids, positions), hidden_rows(input_metadata)
            return compute_logits(hidden if rows is None else hidden[rows], input_ids, self._logits, input_metadata)
        finally:
            now.metadata = now.output = None
