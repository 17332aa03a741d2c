"""Checkpoints made to measure on, and their conversions."""

import json
import os
from pathlib import Path

import pytest
import torch
import transformers

from nanoinfer import LLM, SamplingParams
from nanoinfer.bench.make_models import make_checkpoint, make_gguf, pairs_as_neighbours

TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}


def test_both_dtypes_hold_the_same_numbers_and_logits_are_apart(tmp_path: Path) -> None:
    models = {}
    for dtype in ("float32", "bfloat16"):
        make_checkpoint(tmp_path / f"small-{dtype}", **TINY)
        models[dtype] = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / f"small-{dtype}", dtype="auto")
        assert models[dtype].dtype == getattr(torch, dtype)
    wide, narrow = (models[dtype].state_dict() for dtype in ("float32", "bfloat16"))
    assert all(torch.equal(wide[name], narrow[name].float()) for name in wide)
    with torch.no_grad():
        logits = models["float32"](torch.arange(300, 340)[None]).logits[0]
    best, second = logits.topk(2).values.T
    assert (best - second).median() > 1e-3
    assert len(logits.argmax(-1).unique()) > 10

    llm = LLM(tmp_path / "small-float32")
    assert llm.tokenizer is not None
    assert len(transformers.AutoTokenizer.from_pretrained(tmp_path / "small-float32")) == 1000
    (out,) = llm.generate("the cat", SamplingParams(max_new_tokens=3, temperature=0))
    assert out.prompt_tokens > 0


def test_rotary_pairs_become_neighbours() -> None:
    rows = torch.arange(2 * 8)[:, None].float()  # two heads of size 8; a row's value is its number
    moved = pairs_as_neighbours(rows, heads=2)[:, 0].tolist()
    assert moved == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]


def test_gguf_has_every_weight_where_llama_cpp_looks_for_it(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    make_checkpoint(tmp_path / "small-float32", **TINY)
    file = tmp_path / "small-float32" / "config.json"
    config = json.loads(file.read_text())
    older = {**config, "rope_parameters": None, "rope_theta": 5000.0}
    file.write_text(json.dumps(older))
    reader = gguf.GGUFReader(make_gguf(tmp_path / "small-float32"))
    assert reader.fields["llama.rope.freq_base"].contents() == 5000.0
    file.write_text(json.dumps({**older, "rope_scaling": {"type": "linear", "factor": 2.0}}))
    with pytest.raises(ValueError, match="default rotary positions"):
        make_gguf(tmp_path / "small-float32")
    names = {tensor.name for tensor in reader.tensors}
    assert {"token_embd.weight", "output.weight", "output_norm.weight", "blk.1.attn_q.weight"} <= names
    assert len(names) == 3 + 2 * 9
    assert os.path.getsize(tmp_path / "small-float32.gguf") > 1000
