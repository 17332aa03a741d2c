"""Adapters on disk, with PEFT as the oracle: of every family the same projections, ranks, scales and deltas."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file

from nanoinfer import LLM
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.families import find_family
from nanoinfer.model.lora.peft_files import read_adapter
from nanoinfer.model.lora.projections import projections
from nanoinfer.model.weights import load_weights
from tests.helpers.adapters import MIXED, PARAMS, PROMPTS, Name, outputs, three_adapters
from tests.helpers.checkpoints import FAMILIES
from tests.helpers.kernels import all_kernels
from tests.helpers.peft_models import ATTENTION, ENDS, adapt, check_equal, layers_of, network_of

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]
pytestmark = pytest.mark.filterwarnings("ignore")  # PEFT warns of much that is asked for here on purpose


@pytest.mark.parametrize("family", FAMILIES)
def test_projections_are_the_rows_of_the_checkpoint(family: str, checkpoint: Checkpoint) -> None:
    stored = load_file(checkpoint(family) / "model.safetensors")
    found = projections(network_of(checkpoint(family)))
    wanted = {f"model.layers.{layer}.{'self_attn' if end in ('qkv_proj', *ATTENTION) else 'mlp'}.{end}"
              for layer in range(3) for end in ENDS[family]}  # fmt: skip
    assert found.keys() == wanted
    for name, projection in found.items():
        assert [projection.columns, projection.in_features] == list(stored[f"{name}.weight"].shape)
        together = [each for each in found.values() if each.linear is projection.linear]
        before = sum(each.columns for each in together[: together.index(projection)])
        assert projection.first == before  # side by side, in the order of names
        assert sum(each.columns for each in together) == projection.linear.out_features
        assert projection.linear.in_features == projection.in_features


@pytest.mark.parametrize("family", FAMILIES)
def test_columns_of_a_projection_are_its_rows_of_the_weight(family: str, checkpoint: Checkpoint) -> None:
    path = checkpoint(family)
    config = ModelConfig.from_pretrained(path)
    network = find_family(config.architecture)(config, 64, torch.float32, torch.device("cpu"))
    load_weights(network, path)
    stored = load_file(path / "model.safetensors")
    for name, projection in projections(network).items():
        rows = projection.linear.weight[projection.first : projection.first + projection.columns]
        assert torch.equal(rows, stored[f"{name}.weight"])


def named_configs(ends: list[str]) -> dict[str, dict[str, Any]]:
    """One LoraConfig for each thing that a config can say."""
    first, second, *_, last = ends
    return {
        "one": {"target_modules": [first]},
        "all by name": {"target_modules": ends},
        "all linear": {"target_modules": "all-linear"},
        "regex": {"target_modules": rf".*layers\.[02]\..*({first}|{last})"},
        "full names": {"target_modules": [f"model.layers.1.self_attn.{first}", f"layers.2.mlp.{last}"]},
        "rank and alpha": {"target_modules": ends, "r": 3, "lora_alpha": 7},
        "alpha is not whole": {"target_modules": [first], "lora_alpha": 0.3},
        "rslora": {"target_modules": ends, "r": 5, "lora_alpha": 3, "use_rslora": True},
        "rank_pattern": {"target_modules": ends, "rank_pattern": {rf"layers\.1\..*{first}": 2, second: 11, first: 4}},
        "alpha_pattern": {"target_modules": ends, "alpha_pattern": {rf".*\.[01]\..*\.{last}": 1, last: 5}},
        "both patterns, rslora": {
            "target_modules": "all-linear",
            "use_rslora": True,
            "rank_pattern": {"(mlp|self_attn).*": 6, first: 1},
            "alpha_pattern": {f"^model.layers.0.self_attn.{first}": 64, r"[^.]*\.[^.]*\.2\..*": 0.5},
        },
        "one layer": {"target_modules": ends, "layers_to_transform": 1},
        "some layers": {"target_modules": [first, last], "layers_to_transform": [0, 2, 5]},
        "layers by pattern": {"target_modules": ends, "layers_to_transform": [2], "layers_pattern": ["h", "layers"]},
        "layers, but one by name": {
            "target_modules": [first, f"model.layers.2.mlp.{last}"],
            "layers_to_transform": 0,
            "layers_pattern": "layers",
        },
        "excluded": {"target_modules": ends, "exclude_modules": [last, f"layers.0.self_attn.{first}"]},
        "excluded by regex": {"target_modules": "all-linear", "exclude_modules": rf".*\.1\..*|.*{first}"},
        "gaussian start": {"target_modules": [first], "init_lora_weights": "gaussian", "lora_dropout": 0.2},
        "no task": {"target_modules": [first], "task_type": None},
    }  # fmt: skip


ALL_CASES = ("llama", "phi3")  # the other families' projections have the same names as Llama's
SOME = ("all linear", "both patterns, rslora", "layers, but one by name", "excluded by regex")


@pytest.mark.parametrize(
    ("family", "case"),
    [(family, case) for family in FAMILIES for case in (named_configs(ENDS[family]) if family in ALL_CASES else SOME)],
)
def test_an_adapter_is_what_it_is_in_peft(
    family: str,
    case: str,
    checkpoint: Checkpoint,
    oracle: Oracle,
    tmp_path: Path,
) -> None:
    model = adapt(oracle(checkpoint(family)), **named_configs(ENDS[family])[case])
    model.save_pretrained(tmp_path)
    check_equal(model, read_adapter(tmp_path, network_of(checkpoint(family))))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_tensors_keep_the_dtype_they_are_stored_in(
    dtype: torch.dtype,
    checkpoint: Checkpoint,
    oracle: Oracle,
    tmp_path: Path,
) -> None:
    model = adapt(oracle(checkpoint("llama")), target_modules="all-linear").to(dtype)
    model.save_pretrained(tmp_path)
    read = read_adapter(tmp_path, network_of(checkpoint("llama")))
    assert len(read) == 21
    for name, layer in layers_of(model).items():
        assert read[name].a.dtype == read[name].b.dtype == dtype
        assert torch.equal(read[name].a, layer.lora_A["default"].weight)


def logits_after(model: peft.PeftModel, name: Name, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """PEFT's logits from which each of `tokens` is chosen after the prompt."""
    ids = torch.tensor([prompt + tokens])
    if name is None:
        with model.disable_adapter():
            return model(ids).logits[0, len(prompt) - 1 : -1]
    model.set_adapter(name)
    return model(ids).logits[0, len(prompt) - 1 : -1]


@pytest.mark.cpu
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_mixed_batch_has_pefts_tokens_and_logits(family: str, checkpoint: Checkpoint, oracle: Oracle) -> None:
    """With the kernels in C++, where there are any, and with plain torch."""
    path, folders = checkpoint(family), three_adapters(checkpoint(family))
    model = peft.PeftModel.from_pretrained(oracle(path), folders["small"], "small")
    try:
        for name in ("large", "some"):
            model.load_adapter(folders[name], name)
        model.eval()
        batch = [row[:5] for row in (PROMPTS[0], PROMPTS[1], PROMPTS[0], PROMPTS[5])]
        first = model(torch.tensor(batch), adapter_names=["small", "large", "__base__", "some"]).logits[:, -1]
        wanted: list[torch.Tensor] = []
        for kernels in all_kernels("cpp"):
            llm = LLM(path, max_total_tokens=512, kernels=kernels, adapters=folders)
            of_all = outputs(llm)
            wanted = wanted or [
                logits_after(model, name, prompt, output.token_ids)
                for prompt, name, output in zip(PROMPTS, MIXED, of_all, strict=True)
            ]
            for logits, output in zip(wanted, of_all, strict=True):
                assert output.token_ids == logits.argmax(-1).tolist()
                for row, found in zip(logits.log_softmax(-1), output.logprobs, strict=True):
                    assert all(abs(float(row[token]) - value) < 1e-4 for token, value in found.items())
            of_batch = llm.generate(batch, PARAMS, use_tqdm=False, adapter=["small", "large", None, "some"])
            assert [output.token_ids[0] for output in of_batch] == first.argmax(-1).tolist()
    finally:
        model.unload()
