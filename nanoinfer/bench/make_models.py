"""Makes checkpoints for measurements: Llama shapes and a mixture of experts (Qwen3-MoE), with random weights, and Llama's
weights in llama.cpp's format.

    python -m nanoinfer.bench.make_models checkpoint models/small-float32 models/small-bfloat16 models/mid-bfloat16
    python -m nanoinfer.bench.make_models gguf models/small-bfloat16                   (needs the package gguf)
    PATH/TO/LLAMA.CPP'S/python nanoinfer/bench/make_models.py gguf models/small-bfloat16 --weights int8

A checkpoint's folder is named SIZE-DTYPE. The converted checkpoint is written beside it, with `.gguf` added to the name.
With `--weights int8` or `int4`, llama.cpp's own tool quantizes it, and the added part is `.int8.gguf` and so on.

This file also runs as a plain script where nanoinfer is not installed.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHAPE = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "tie_word_embeddings")
SIZES = {
    "small": (512, 1536, 8, 8, False),  # 57 M parameters, more than half of them embedding and head
    "moe": (512, 1024, 8, 8, False),  # 240 M, of which a token multiplies by 47 M
    "mid": (896, 4864, 24, 14, True),  # 386 M: Qwen2.5-0.5B's shape with a vocabulary of 32,000
}
EXPERTS = {
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 256,
    "norm_topk_prob": True,
    "head_dim": 64,
}
DTYPES = ("float32", "bfloat16")
FIELDS = {
    "vocab_size": 32000,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def make_checkpoint(folder: Path, seed: int = 0, **changes: Any) -> None:
    """Write config, weights and tokenizer. All dtypes of a size hold the same numbers, each representable in bfloat16.

    `changes`: other values for fields of the config. ValueError if the folder's name is not SIZE-DTYPE.
    """
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3MoeConfig

    size, _, dtype = folder.name.partition("-")
    if size not in SIZES or dtype not in DTYPES:
        raise ValueError(
            f"{folder}: its name must be SIZE-DTYPE with a size of {', '.join(SIZES)} and a dtype of {', '.join(DTYPES)}"
        )
    fields: dict[str, Any] = {**FIELDS, **dict(zip(SHAPE, SIZES[size], strict=True)), **changes}
    config = Qwen3MoeConfig(**fields, **EXPERTS) if size == "moe" else LlamaConfig(**fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model = model.to_empty(device="cpu").to(torch.bfloat16)
    model.tie_weights()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in sorted(model.named_parameters()):
            noise = torch.randn(weights.shape, generator=generator)
            if "norm" in name:
                weights.copy_(1 + 0.1 * noise)
            elif "embed_tokens" in name or "lm_head" in name:
                weights.copy_(0.05 * noise)
            else:  # keeps the scale of activations, so that logits differ
                weights.copy_(noise / weights.shape[-1] ** 0.5)
    model = model.to(getattr(torch, dtype))
    model.config.dtype = model.dtype
    model.save_pretrained(folder)
    _make_tokenizer(folder, fields["vocab_size"])


def _make_tokenizer(folder: Path, vocab_size: int) -> None:
    """Byte-level BPE of exactly `vocab_size` tokens: three special tokens, all bytes, and words of 2 to 4 letters."""
    from itertools import product

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges: list[tuple[str, str]] = []
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ("".join(word) for length in range(2, 5) for word in product(letters, repeat=length))
    for word in words:
        if len(tokens) >= vocab_size:
            break
        tokens.append(word)
        merges.append((word[:-1], word[-1]))
    vocab = {token: i for i, token in enumerate(tokens[:vocab_size])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)


def make_gguf(checkpoint: Path) -> Path:
    """Write `CHECKPOINT.gguf` for llama.cpp: Llama's tensors in the checkpoint's dtype, and the vocabulary if the tokenizer
    is a byte-level BPE (else none, so that it takes only token ids); returns its path.

    ValueError for anything but a Llama with plain rotary positions.
    """
    import gguf

    config = json.loads((checkpoint / "config.json").read_text())
    older = {"rope_theta": config.get("rope_theta", 10000.0), "rope_type": config.get("rope_scaling") or "default"}
    rope = config.get("rope_parameters") or older
    if config.get("architectures") != ["LlamaForCausalLM"] or rope.get("rope_type", "default") != "default":
        raise ValueError(
            f"{checkpoint}: must be a LlamaForCausalLM with default rotary positions; use llama.cpp's converter"
        )
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    kinds = {"float32": gguf.GGMLQuantizationType.F32, "bfloat16": gguf.GGMLQuantizationType.BF16}
    kind = kinds[config["dtype"]]
    target = Path(f"{checkpoint}.gguf")
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    _add_vocabulary(writer, checkpoint, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, weights in _tensors(checkpoint):
        new_name = names.get_name(name, try_suffixes=(".weight",))
        if "self_attn.q_proj" in name or "self_attn.k_proj" in name:
            weights = pairs_as_neighbours(weights, heads if "q_proj" in name else kv_heads)
        array = weights.contiguous().numpy()
        if array.ndim == 1:
            writer.add_tensor(new_name, array)
        else:
            writer.add_tensor(new_name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add_vocabulary(writer: Any, checkpoint: Path, config: dict[str, Any]) -> None:
    """Tokens and merges from `tokenizer.json`. A model's name tells llama.cpp how text is split before that."""
    from gguf import SpecialVocab, TokenType

    file = checkpoint / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"model": {}}
    splits = tokenizer.get("pre_tokenizer") or {}
    kinds = [each["type"] for each in splits.get("pretokenizers", [splits] if splits else [])]
    if tokenizer["model"].get("type") != "BPE" or kinds not in (["ByteLevel"], ["Digits", "ByteLevel"]):
        writer.add_tokenizer_model("no_vocab")
        return
    ids = dict(tokenizer["model"]["vocab"])
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"] if token["special"]}
    names = {number: text for text, number in ids.items()} | special
    kinds_of = dict.fromkeys(names, TokenType.NORMAL) | dict.fromkeys(special, TokenType.CONTROL)
    tokens = [names.get(number, f"<unused {number}>") for number in range(config["vocab_size"])]
    types = [kinds_of.get(number, TokenType.UNUSED) for number in range(config["vocab_size"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("starcoder" if "Digits" in kinds else "gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    SpecialVocab(checkpoint, load_merges=True).add_to_gguf(writer)


def quantize_gguf(checkpoint: Path, weights: str) -> None:
    """Write `CHECKPOINT.int8.gguf` (Q8_0) or `CHECKPOINT.int4.gguf` (Q4_0) from `CHECKPOINT.gguf`, by llama.cpp's own
    quantizer, which chooses the types of embedding and head itself. `checkpoint`: its folder or that file, whose numbers
    may be quantized. RuntimeError if it fails."""
    import llama_cpp

    name = str(checkpoint).removesuffix(".gguf")
    source, target = f"{name}.gguf", f"{name}.{weights}.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.allow_requantize = True
    params.ftype = {"int8": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "int4": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0}[weights]
    if code := llama_cpp.llama_model_quantize(source.encode(), target.encode(), params):
        raise RuntimeError(f"{source}: llama.cpp's quantizer returned {code}")


def pairs_as_neighbours(weights: Any, heads: int) -> Any:
    """Reorder the rows of a query or key projection `[heads * D, hidden]` within each head. Rotary pairs are the rows
    (i, i + D/2) in Hugging Face's checkpoints, but adjacent rows in GGUF."""
    return weights.reshape(heads, 2, -1, weights.shape[-1]).swapaxes(1, 2).reshape(weights.shape)


def _tensors(checkpoint: Path) -> Iterator[tuple[str, Any]]:
    """Every tensor of a checkpoint with its name, in float32."""
    from safetensors import safe_open

    for file in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dictionary
                yield name, tensors.get_tensor(name).float()


def main() -> None:
    """The command line of the module's docstring."""
    parser = argparse.ArgumentParser(description="Make checkpoints for measurements, and convert them.")
    parser.add_argument("what", choices=["checkpoint", "gguf"])
    parser.add_argument("folder", nargs="+", type=Path, help="checkpoint folders; name those to be made SIZE-DTYPE")
    parser.add_argument("--weights", choices=["int8", "int4"], help="quantize an existing CHECKPOINT.gguf")
    args = parser.parse_args()
    for folder in args.folder:
        if args.what == "checkpoint":
            make_checkpoint(folder)
        elif args.weights:
            quantize_gguf(folder, args.weights)
        else:
            make_gguf(folder)


if __name__ == "__main__":
    main()
